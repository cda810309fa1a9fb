"""Routed experts plus gated shared expert, rounded once."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"block": 1024, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="shared_combine_once",
    op="shared_combine",
    version=1,
    doc="Elementwise.",
    rounding=("routed + shared * gate, product and sum each in fp32; rounded once to the model dtype",),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "block": Field(type="int", choices=(256, 512, 1024, 2048), free=True, doc="columns in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("shared_combine",),
    recommend=_recommend,
)
