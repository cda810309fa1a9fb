"""Grouped GEMM of the experts' second projection as a balanced tree of leaves along k."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    """Launches as `bench/moe_sweep.py` found them best on an H200, by the mean number of rows an expert has."""
    experts, hidden, width = (int(attributes[name]) for name in ("experts", "hidden", "width"))
    row: Values = {"schedule": "rows", "block_m": 1, "block_n": 32, "num_warps": 1, "num_stages": 7}
    few: Values = {"schedule": "experts", "block_m": 16, "block_n": 128, "num_warps": 4, "num_stages": 3}
    many: tuple[tuple[int | None, Values], ...] = ((None, {**few, "schedule": "resident"}),)
    if width > 1024 or width // 8 % 32 or hidden % 128:
        wide: Values = {**few, "schedule": "tiles", "num_stages": 4}
        many = ((32 * experts, {**wide, "block_m": 32}), (None, {**wide, "block_m": 64, "num_warps": 8}))
    launch = ((max(1, experts // 4), row), (8 * experts, few), *many)
    return Settings(constants={"leaves": 8}, launch={"sm90": launch})


def _tree(attributes: Values, constants: Values) -> ReductionTree:
    leaves = int(constants["leaves"])
    return ReductionTree(leaves=leaves, leaf=int(attributes["width"]) // leaves, shape="balanced")


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    width, leaves = int(attributes["width"]), int(constants["leaves"])
    if width % (16 * leaves):
        yield f"width {width} cannot be cut into {leaves} leaves of a multiple of 16"


IMPLEMENTATION = Implementation(
    name="expert_down_tree",
    op="expert_down",
    version=1,
    doc=(
        "Each leaf is summed in order of k and the leaves by a balanced tree, so that a rank that holds a share of the "
        "width computes a node of the tree, and the ranks' nodes combine pairwise to the bits of one rank."
    ),
    rounding=(
        "leaf: products of the activations and the weight, summed in fp32 in order of k",
        "leaves: the balanced tree in fp32; not rounded",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={"leaves": Field(type="int", choices=(1, 2, 4, 8), doc="equal contiguous parts of the summed axis")},
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("rows", "experts", "tiles", "resident"),
                free=True,
                doc="one program a row, an expert or a tile; or rows stay in shared memory and the weight streams",
            ),
            "block_m": Field(type="int", choices=(1, 16, 32, 64, 128), free=True, doc="rows of one tile"),
            "block_n": Field(type="int", choices=(32, 64, 128, 256), free=True, doc="columns of one tile"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
            "num_stages": Field(type="int", choices=(1, 2, 3, 4, 5, 7), free=True, doc="depth of the load pipeline"),
        }
    },
    tree=_tree,
    problems=_problems,
    recommend=_recommend,
)
