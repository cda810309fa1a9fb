# SPDX-License-Identifier: Apache-2.0
"""Gated RMSNorm, each row summed by one explicit tree of adjacent pairs."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 8, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="gated_rms_norm_rows",
    op="gated_rms_norm",
    version=1,
    doc="A tree of adjacent pairs over the row, zero-padded to a power of two; exp is our own polynomial.",
    rounding=(
        "squares in fp32; their sum is the balanced tree of adjacent pairs over the row padded with zeros",
        "mean = sum * fp32(1/width); r = 1 / sqrt(mean + eps), division and square root correctly rounded",
        "(x * r) * weight in fp32, times gate / (1 + exp(-gate)) in fp32, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16), free=True, doc="rows in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    recommend=_recommend,
)
