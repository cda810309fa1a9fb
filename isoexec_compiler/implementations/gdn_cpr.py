"""Gated delta rule, chunkwise-parallel recurrent: a chain of chunk states, and a recurrence inside each chunk."""

from __future__ import annotations

from isoexec_compiler.implementations.gdn_native_step import RECURRENT_LAUNCH, RECURRENT_ROUNDING
from isoexec_compiler.implementations.gdn_rxc import (
    CHUNK_CONSTANTS,
    CHUNK_ROUNDING,
    SCAN_LAUNCH,
    chunk_problems,
    chunk_settings,
)
from isoexec_compiler.registry import Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    few, many = (chunk_settings(recurrent_block_v=block, recurrent_warps=1) for block in (8, 16))
    ((_, step),), ((_, prefill),) = few.launch["sm90"], many.launch["sm90"]
    return Settings(constants=few.constants, launch={"sm90": ((1024, step), (None, prefill))})


IMPLEMENTATION = Implementation(
    name="gdn_cpr",
    op="gated_delta_rule",
    version=2,
    doc=(
        "The fp32 chain of the chunk form gives every chunk its first state, rounded to bf16; outputs come only from "
        "the recurrence inside the chunk, all chunks in parallel. Decode runs the recurrence and moves the chain on "
        "when a chunk is full; what the recurrence reached there is dropped, in every case alike."
    ),
    rounding=(
        "the chain:",
        *CHUNK_ROUNDING[:4],
        CHUNK_ROUNDING[5],
        CHUNK_ROUNDING[7],
        "inside a chunk, from bf16(S) widened:",
        *RECURRENT_ROUNDING,
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants=CHUNK_CONSTANTS,
    launch={"sm90": {**SCAN_LAUNCH, **RECURRENT_LAUNCH}},
    problems=chunk_problems,
    recommend=_recommend,
)
