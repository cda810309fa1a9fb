"""Gated delta rule, chunkwise-parallel recurrent: a chain of chunk states, and a recurrence inside each chunk."""

from __future__ import annotations

from isoexec_compiler.implementations.gdn_native_step import RECURRENT_LAUNCH, RECURRENT_SUMS
from isoexec_compiler.implementations.gdn_rxc import (
    CHUNK_CONSTANTS,
    CHUNK_ROUNDING,
    SCAN_LAUNCH,
    chunk_problems,
    chunk_settings,
)
from isoexec_compiler.registry import Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return chunk_settings(recurrent_block_v=8, recurrent_warps=1)


IMPLEMENTATION = Implementation(
    name="gdn_cpr",
    op="gated_delta_rule",
    version=3,
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
        "inside a chunk, from Z = bf16(S) widened, with B the multiple of 32 from G towards zero, all in fp32:",
        "Z * exp2(B - B of the row before), exact; u = (v - (Z k) * exp2(G - B)) * (beta * exp2(B - G))",
        "then Z + u k^T, fused on sm90, and o = (Z q) * (exp2(G - B) * scale), rounded to bf16",
        RECURRENT_SUMS,
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants=CHUNK_CONSTANTS,
    launch={"sm90": {**SCAN_LAUNCH, **RECURRENT_LAUNCH}},
    problems=chunk_problems,
    recommend=_recommend,
)
