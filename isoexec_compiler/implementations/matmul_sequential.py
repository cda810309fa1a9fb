"""Matrix product whose sums run by ascending k in one accumulator: the order of a single tensor-core chain."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.registry import Field, Implementation, Settings, Values

# Schedules that the copy engine feeds, and those of them whose outputs it stores.
FED = ("persistent", "columns", "halves", "beside")
STORED = ("persistent", "columns", "halves")
# Shared by the matrix products.
BLOCK_K = Field(
    type="int",
    choices=(16, 32, 64, 128),
    doc="k taken per step: the cpu order depends on it; on sm90 no bit was seen to move, and it is pinned too",
)
TILE_LAUNCH = {
    "block_m": Field(
        type="int", choices=(16, 32, 64, 128), free=True, doc="rows of a tile; persistent: 64, or else 128"
    ),
    "block_n": Field(type="int", choices=(16, 32, 64, 128, 256), free=True, doc="outputs of a tile, at most what fits"),
    "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps of a tile; persistent has its own"),
    "num_stages": Field(type="int", minimum=2, maximum=16, free=True, doc="tiles in flight, at most what fits"),
    "group": Field(type="int", choices=(1, 4, 8, 16), free=True, doc="row tiles that share weights in L2"),
    "overlap": Field(
        type="bool",
        choices=(False, True),
        free=True,
        doc="programmatic dependent launch: start while the kernel before still runs",
    ),
}


def _tree(attributes: Values, constants: Values) -> ReductionTree:
    block = int(constants["block_k"])
    return ReductionTree(leaves=int(attributes["k"]) // block, leaf=block, shape="chain")


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    if int(attributes["k"]) % int(constants["block_k"]):
        yield f"k = {attributes['k']} is not a multiple of block_k = {constants['block_k']}"


def misfits(attributes: Values, launch: Values, ranks: int, chain: int) -> Iterator[str]:
    """Why the copy engine cannot feed one of `ranks` chains of so many elements, or store what it computes."""
    schedule = launch["schedule"]
    if schedule in FED and chain % 64:
        yield f"sums of {chain} elements are not multiples of the 64 that {schedule} takes at a time"
    outputs, rest = divmod(int(attributes["n"]), ranks if attributes["split"] == "columns" else 1)
    if schedule in STORED and attributes["out"] == "model" and not rest and outputs % 8:
        yield f"rows of {outputs} outputs are not multiples of the 16 bytes that {schedule} stores at once"


def _launch_problems(attributes: Values, constants: Values, launch: Values, ranks: int) -> Iterator[str]:
    return misfits(attributes, launch, ranks, int(attributes["k"]))


def _recommend(attributes: Values) -> Settings:
    """Launches as `bench/gemm_sweep.py` found them best on an H200: enough programs first, then large tiles."""
    block = next((size for size in (64, 32, 16) if int(attributes["k"]) % size == 0), 64)
    wide = int(attributes["n"]) >= 16384
    common: Values = {"schedule": "tiles", "overlap": True}
    few: Values = {**common, "block_m": 16, "block_n": 32, "num_warps": 2, "num_stages": 8, "group": 1}
    if wide:
        few = {**few, "block_n": 64, "num_warps": 4, "num_stages": 4 if int(attributes["n"]) < 65536 else 6}
    some: Values = {**common, "block_m": 64, "block_n": 64, "num_warps": 4, "num_stages": 4 if wide else 8, "group": 1}
    many: Values = {**common, "block_m": 128, "block_n": 256, "num_warps": 8, "num_stages": 3, "group": 8}
    launch: tuple[tuple[int | None, Values], ...]
    if int(attributes["k"]) % 64 or int(attributes["n"]) % 64:  # `misfits` of eight ranks
        launch = ((16, few), (64, some), (None, many))
    else:
        streamed: Values = {**many, "schedule": "persistent", "num_stages": 8}
        launch = (
            (16, few),
            *(() if wide else ((64, some),)),
            (128, {**streamed, "schedule": "columns", "block_m": 64}),
            (2048, {**streamed, "block_n": 128}),
            (None, streamed),
        )
    return Settings(constants={"block_k": block}, launch={"sm90": launch})


IMPLEMENTATION = Implementation(
    name="matmul_sequential",
    op="matmul",
    version=1,
    doc="One accumulator per output, k ascending: rows and outputs may be cut at will, the summed axis never.",
    rounding=(
        "sm90: products of bf16 values are exact; the tensor core adds them to an fp32 accumulator by ascending k",
        "cpu: products in fp32; the balanced tree of adjacent pairs over each block_k; blocks added by ascending k",
        "the sum is rounded once to the model dtype (out fp32: not rounded)",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={"block_k": BLOCK_K},
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("tiles", "persistent", "columns", "cublas"),
                free=True,
                doc="tiles: one program a tile; persistent: warp-specialised, block_k 64 only; columns: so too, tiles "
                "of 64 rows by 192 outputs; cublas: the vendor's product, only for shapes and rows where the law found "
                "it equal on the device",
            ),
            **TILE_LAUNCH,
        }
    },
    tree=_tree,
    problems=_problems,
    launch_problems=_launch_problems,
    recommend=_recommend,
)
