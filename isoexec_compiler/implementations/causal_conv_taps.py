# SPDX-License-Identifier: Apache-2.0
"""Causal convolution as a sum of shifted rows, the oldest first."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    few, many = {"rows": 1, "block": 512, "num_warps": 4}, {"rows": 8, "block": 256, "num_warps": 4}
    return Settings(launch={"sm90": ((64, few), (None, many))})


IMPLEMENTATION = Implementation(
    name="causal_conv_taps",
    op="causal_conv",
    version=1,
    doc=(
        "The taps of a result are added from the oldest token to its own, wherever they lie: in the batch, in the "
        "state of raw inputs, or before the sequence's start, where they are zero. A sequence may be split anywhere."
    ),
    rounding=(
        "each tap x * weight in fp32, added in fp32 from the oldest token on, products and sums rounded apart",
        "z / (1 + exp(-z)) in fp32, the division correctly rounded; rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16), free=True, doc="tokens in one program"),
            "block": Field(type="int", choices=(64, 128, 256, 512, 1024), free=True, doc="channels in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    recommend=_recommend,
)
