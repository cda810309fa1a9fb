"""Decay and write strength of the gated delta rule, elementwise in fp32."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 16, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="gdn_gates_rows",
    op="gdn_gates",
    version=1,
    doc="fp32 throughout and fp32 results: a rounded beta would move bits of the dots it scales.",
    rounding=(
        "x = a + dt_bias in fp32; y = exp(-|x|), by the polynomial of `elementary`, as every exp here",
        "log1p(y) = log(1 + y) * (y / ((1 + y) - 1)), or y where 1 + y = 1",
        "g = -exp(A_log) * (max(x, 0) + log1p(y)), fp32",
        "beta = 1 / (1 + exp(-b)), division correctly rounded, fp32",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16, 32), free=True, doc="rows in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("gdn_gates",),
    recommend=_recommend,
)
