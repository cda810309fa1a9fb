"""Gate of the shared expert, its dot product one explicit tree of adjacent pairs."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="shared_gate_tree",
    op="shared_gate",
    version=1,
    doc="A tree of adjacent pairs over the row, zero-padded to a power of two: no launch parameter changes its order.",
    rounding=(
        "products of x and the weight in fp32; their sum is the balanced tree of adjacent pairs over the row",
        "1 / (1 + exp(-sum)) in fp32; not rounded to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={"sm90": {"num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program")}},
    emulated=("shared_gate",),
    recommend=_recommend,
)
