# SPDX-License-Identifier: Apache-2.0
"""Experts whose width an engine's ranks share: their nodes combined, as an opaque operator."""

from __future__ import annotations

from .engine_collectives import operator
from .regions import ops
from .routed_experts import combined_nodes

# fp32 nodes [T, k, H] of every rank and weights [T, k] -> the experts' sum [T, H] on every rank.
combine_slots = operator(
    "combine_slots",
    "Tensor rows, Tensor weights",
    lambda rows, weights, region, group: combined_nodes(
        rows, weights, lambda parts, mine: ops.combine_slots(parts, mine, region), group
    ),
)
