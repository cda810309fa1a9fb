"""Grouped GEMM of the experts' first projection, each sum in order of k."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    """Launches as `bench/moe_sweep.py` found them best on an H200, by the mean number of rows an expert has."""
    experts = int(attributes["experts"])
    row: Values = {"schedule": "rows", "block_m": 1, "block_n": 32, "block_k": 512, "num_warps": 4, "num_stages": 3}
    few: Values = {**row, "schedule": "experts", "block_m": 16, "block_n": 128, "block_k": 128, "num_stages": 4}
    return Settings(
        launch={
            "sm90": (
                (max(1, experts // 4), row),
                (8 * experts, few),
                (16 * experts, {**few, "block_m": 32, "num_stages": 3}),
                (None, {**few, "schedule": "specialised"}),
            )
        }
    )


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    if int(attributes["hidden"]) % 64:
        yield f"hidden {attributes['hidden']} is not a multiple of 64"


IMPLEMENTATION = Implementation(
    name="expert_gate_up_sequential",
    op="expert_gate_up",
    version=1,
    doc=(
        "Rows are sorted by expert, and a tile holds rows of one expert only. A row's bits do not depend on the rows "
        "beside it, so neither batch, nor expert parallelism, nor the order of arrival moves one."
    ),
    rounding=("products of x and the weight, summed in fp32 in order of k; rounded once to the model dtype",),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("rows", "experts", "tiles", "specialised"),
                free=True,
                doc="one program a row, an expert or a tile; or warps that copy beside warps that multiply",
            ),
            "block_m": Field(type="int", choices=(1, 16, 32, 64, 128), free=True, doc="rows of one tile"),
            "block_n": Field(type="int", choices=(32, 64, 128, 256), free=True, doc="columns of one tile"),
            "block_k": Field(type="int", choices=(16, 32, 64, 128, 256, 512), free=True, doc="features of one step"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
            "num_stages": Field(type="int", choices=(1, 2, 3, 4, 5, 7), free=True, doc="depth of the load pipeline"),
        }
    },
    problems=_problems,
    recommend=_recommend,
)
