"""Gated RMSNorm, each row summed by one explicit tree of adjacent pairs."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 8, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="gated_rms_norm_rows",
    op="gated_rms_norm",
    version=1,
    doc="Norm and gate in fp32 in one kernel, one rounding; the sum is the tree of `rms_norm_rows`.",
    rounding=(
        "squares in fp32; their sum is the balanced tree of adjacent pairs over the row padded with zeros",
        "mean = sum * fp32(1/width); r = 1 / sqrt(mean + eps), division and square root correctly rounded",
        "(x * r) * weight in fp32",
        "gate / (1 + exp(-gate)) in fp32, exp by the polynomial of `elementary`",
        "their product, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16, 32), free=True, doc="rows in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("gated_rms_norm",),
    recommend=_recommend,
)
