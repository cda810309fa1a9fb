"""Residual addition, one rounding."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"block": 2048, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="residual_add_rows",
    op="residual_add",
    version=1,
    doc="x + residual in fp32, rounded once.",
    rounding=("x + residual in fp32, rounded to the model dtype",),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "block": Field(type="int", choices=(512, 1024, 2048, 4096), free=True, doc="elements in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("residual_add",),
    recommend=_recommend,
)
