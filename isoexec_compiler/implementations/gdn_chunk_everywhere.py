"""Gated delta rule, chunkwise everywhere: decode computes its open chunk again for every token."""

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
    name="gdn_chunk_everywhere",
    op="gated_delta_rule",
    version=1,
    doc=(
        "The chunk form in every case; a decoded token costs its whole open chunk. Exact because every row reads rows "
        "no later than itself: the plainest way to equal bits, and the slowest."
    ),
    rounding=CHUNK_ROUNDING,
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants=CHUNK_CONSTANTS,
    launch={"sm90": SCAN_LAUNCH},
    problems=chunk_problems,
    recommend=_recommend,
    exact_with=("gdn_rxc",),
)
