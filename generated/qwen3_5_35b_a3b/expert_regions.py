# SPDX-License-Identifier: Apache-2.0
"""The regions of a mixture of experts as functions that `routed_experts` puts in order, each behind its operator."""

from __future__ import annotations

from .regions import ops
from .routed_experts import Kernels

KERNELS = Kernels(
    dispatch=lambda chosen, count: ops.dispatch(chosen, count, "router"),
    gate_up=lambda x, weight, order, offsets: ops.expert_gate_up(x, weight, order, offsets, "expert_gate_up"),
    act=lambda gate_up, weights, order: ops.expert_act(gate_up, weights, order, "expert_act"),
    down=lambda hidden, weight, order, offsets: ops.expert_down(hidden, weight, order, offsets, "expert_down"),
    expert_combine=lambda rows, weights: ops.expert_combine(rows, weights, "expert_combine"),
    combine=lambda parts, weights: ops.combine_slots(parts, weights, "expert_combine"),
)

# What an adapter that uses them binds.
REGIONS = ("router", "expert_gate_up", "expert_act", "expert_down", "expert_combine")
