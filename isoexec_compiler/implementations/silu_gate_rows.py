"""SiLU-gate in fp32, one rounding."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"block": 1024, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="silu_gate_rows",
    op="silu_gate",
    version=1,
    doc="gate / (1 + exp(-gate)) * up, exp being our own polynomial: the same bits on every target.",
    rounding=(
        "exp(-gate) in fp32 by the polynomial of `elementary`",
        "gate / (1 + exp) in fp32, the division correctly rounded",
        "times up in fp32, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "block": Field(type="int", choices=(256, 512, 1024, 2048), free=True, doc="results in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("silu_gate",),
    recommend=_recommend,
)
