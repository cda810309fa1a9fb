"""SwiGLU of the routed experts with one rounding."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((512, {"rows": 1, "num_warps": 2}), (None, {"rows": 4, "num_warps": 4}))})


IMPLEMENTATION = Implementation(
    name="expert_act_swiglu",
    op="expert_act",
    version=1,
    doc="Elementwise: the gate as gate / (1 + exp(-gate)), then times up, then times the router's weight.",
    rounding=("gate / (1 + exp(-gate)) * up in fp32; weighted: * weight in fp32; rounded once to the model dtype",),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="rows of 512 columns in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("expert_act",),
    recommend=_recommend,
)
