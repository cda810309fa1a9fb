"""RMSNorm, each row summed by one explicit tree of adjacent pairs."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    padded = 1 << (int(attributes["width"]) - 1).bit_length()
    launch = {"rows": max(1, min(16, 2048 // padded)), "num_warps": max(4, min(8, padded // 512))}
    return Settings(launch={"sm90": ((None, launch),)})


IMPLEMENTATION = Implementation(
    name="rms_norm_rows",
    op="rms_norm",
    version=1,
    doc="A tree of adjacent pairs over the row, zero-padded to a power of two: no launch can change its order.",
    rounding=(
        "with a residual: x + residual in fp32, rounded to the model dtype; the norm reads the rounded sum",
        "squares in fp32; their sum is the balanced tree of adjacent pairs over the row padded with zeros",
        "mean = sum * fp32(1/width); r = 1 / sqrt(mean + eps), division and square root correctly rounded",
        "(x * r) * gamma in fp32 (one_plus: gamma = 1 + weight in fp32), rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16), free=True, doc="rows in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8, 16), free=True, doc="warps in one program"),
        }
    },
    emulated=("rms_norm", "add_rms_norm"),
    recommend=_recommend,
)
