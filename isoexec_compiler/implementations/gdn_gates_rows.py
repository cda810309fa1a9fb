# SPDX-License-Identifier: Apache-2.0
"""Gates of the gated delta rule in fp32, never rounded to the model dtype."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 16, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="gdn_gates_rows",
    op="gdn_gates",
    version=1,
    doc=(
        "Elementwise, exp and log being our own polynomials. a_log and dt_bias are fp32 on both sides: rounded to bf16 "
        "they would move every decay."
    ),
    rounding=(
        "x = a + dt_bias in fp32; e = exp(-|x|) and u = 1 + e in fp32",
        "log(1 + e) = log(u) * e / (u - 1), or e where u is 1; softplus = max(x, 0) + log(1 + e)",
        "g = -exp(a_log) * softplus in fp32, not rounded further",
        "beta = 1 / (1 + exp(-b)) in fp32, the division correctly rounded, not rounded further",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 4, 16, 64), free=True, doc="tokens in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    recommend=_recommend,
)
