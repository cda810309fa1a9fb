"""Matrix product whose summed axis is cut into leaves that a balanced tree combines: tensor parallelism may cut it."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.implementations.matmul_sequential import BLOCK_K, TILE_LAUNCH, misfits
from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _tree(attributes: Values, constants: Values) -> ReductionTree:
    leaves = int(constants["leaves"])
    return ReductionTree(leaves=leaves, leaf=int(attributes["k"]) // leaves, shape="balanced")


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    k, leaves, block = int(attributes["k"]), int(constants["leaves"]), int(constants["block_k"])
    if k % leaves:
        yield f"k = {k} cannot be cut into {leaves} equal leaves"
    elif k // leaves % block:
        yield f"k = {k} in {leaves} leaves: {k // leaves} is not a multiple of block_k = {block}"


def _launch_problems(attributes: Values, constants: Values, launch: Values, ranks: int) -> Iterator[str]:
    return misfits(attributes, launch, ranks, int(attributes["k"]) // int(constants["leaves"]))


def _recommend(attributes: Values) -> Settings:
    """Launches as `bench/gemm_sweep.py` found them best on an H200: enough programs first, then large tiles."""
    n, leaf = int(attributes["n"]), int(attributes["k"]) // 8
    block = next((size for size in (64, 32, 16) if leaf % size == 0), 64)
    common: Values = {"share": 8, "group": 8, "overlap": True}
    warps: Values = {"schedule": "warps", "block_m": 16, "block_n": 32, "num_warps": 8, "num_stages": 4, **common}
    if n < 4096:
        warps = {**warps, "block_n": 16}
    tile: Values = {"schedule": "tiles", "block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 5, **common}
    launch: tuple[tuple[int | None, Values], ...]
    if leaf % 64 or n % 8:  # `misfits`
        launch = ((16, warps), (None, {**tile, "share": 2}))
    else:
        streamed: Values = {**tile, "schedule": "persistent", "num_stages": 10}
        halved: Values = {**streamed, "schedule": "halves"}
        beside: Values = {**warps, "schedule": "beside"}
        # As many rows as make one wave of tiles on 132 multiprocessors.
        small, middle = (132 // -(-n // width) * 64 for width in (64, 128))
        launch = (
            (16, beside),
            (64, {**halved, "block_n": 32}),
            *(((small, halved),) if small > 64 else ()),
            *(((middle, {**halved, "block_n": 128}),) if middle > max(small, 64) else ()),
            (None, {**streamed, "block_m": 128, "block_n": 128}),
        )
    return Settings(constants={"leaves": 8, "leaf_dtype": "fp32", "block_k": block}, launch={"sm90": launch})


IMPLEMENTATION = Implementation(
    name="matmul_tree",
    op="matmul",
    version=1,
    doc="The summed axis in equal contiguous leaves, each one chain by ascending k; leaves combined pairwise in fp32.",
    rounding=(
        "a leaf on sm90: exact products of bf16 values, added to an fp32 accumulator by ascending k",
        "a leaf on cpu: fp32 products; the balanced tree of adjacent pairs over each block_k; blocks by ascending k",
        "leaf_dtype bf16: each leaf is rounded to bf16 and widened again",
        "the balanced tree of adjacent leaves in fp32, the lower leaf on the left: ((0+1)+(2+3))+((4+5)+(6+7))",
        "the root is rounded once to the model dtype (out fp32: not rounded)",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={
        "leaves": Field(type="int", choices=(2, 4, 8), doc="leaves of the whole axis, over all ranks"),
        "leaf_dtype": Field(type="enum", choices=("fp32", "bf16"), doc="dtype that a leaf is rounded to"),
        "block_k": BLOCK_K,
    },
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("tiles", "warps", "beside", "persistent", "halves"),
                free=True,
                doc="tiles: `share` leaves one after the other in a program, a second kernel for the levels above; "
                "warps: all leaves of a tile side by side in a program; beside: so too, 16 rows a tile, weights "
                "asked for before the kernel before has ended (of eight leaves, else as warps); persistent: as tiles, "
                "warp-specialised; "
                "halves: so too, 64 rows a tile, half of the leaves in each of two warpgroups",
            ),
            "share": Field(
                type="int", choices=(1, 2, 4, 8), free=True, doc="leaves of one program (tiles, persistent)"
            ),
            **TILE_LAUNCH,
            "num_warps": Field(
                type="int",
                choices=(1, 2, 4, 8),
                free=True,
                doc="warps of a tile, of one with eight leaves for the schedule warps; persistent has its own",
            ),
        }
    },
    tree=_tree,
    problems=_problems,
    launch_problems=_launch_problems,
    emulated=("combine",),
    recommend=_recommend,
)
