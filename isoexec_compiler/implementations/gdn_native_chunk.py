"""Gated delta rule of trainers and prefill as engines run it: chunk kernels that keep the state after the last row."""

from __future__ import annotations

from isoexec_compiler.implementations.gdn_rxc import (
    CHUNK_CONSTANTS,
    CHUNK_ROUNDING,
    SCAN_LAUNCH,
    chunk_problems,
    chunk_settings,
)
from isoexec_compiler.registry import Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return chunk_settings()


IMPLEMENTATION = Implementation(
    name="gdn_native_chunk",
    op="gated_delta_rule",
    version=1,
    doc=(
        "The chunk form with chunks counted from each call's first row and the state after its last row, handed to "
        "`gdn_native_step`. Where a call starts or ends moves bits, so no `equal_bits` claim over both can hold: the "
        "baseline that the others replace."
    ),
    rounding=(
        *CHUNK_ROUNDING[:-1],
        "after a chunk of n rows: S = S * exp2(G_n) + k^T bf16((D_high R) * exp2(G_n - G)); S fp32, read as bf16",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants=CHUNK_CONSTANTS,
    launch={"sm90": SCAN_LAUNCH},
    problems=chunk_problems,
    cases=("engine_prefill", "trainer_fwd", "trainer_score"),
    recommend=_recommend,
)
