"""L2 norm, each row summed by one explicit tree of adjacent pairs."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 16, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="l2_norm_rows",
    op="l2_norm",
    version=1,
    doc="A tree of adjacent pairs over the row, zero-padded to a power of two: no launch parameter moves it.",
    rounding=(
        "squares in fp32; their sum is the balanced tree of adjacent pairs over the row padded with zeros",
        "r = 1 / sqrt(sum + eps), division and square root correctly rounded",
        "x * r in fp32, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16, 32), free=True, doc="rows in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("l2_norm",),
    recommend=_recommend,
)
