# SPDX-License-Identifier: Apache-2.0
"""SwiGLU between the projections of an expert, times the router's weight where the model puts it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op

if TYPE_CHECKING:
    import torch

OP = Op(
    name="expert_act",
    doc="silu(gate) * up, the gate in the first half of the columns; weighted: times the router's weight of the row.",
    attributes={
        "top_k": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
        "width": Field(type="int", minimum=1, doc="intermediate width of an expert"),
        "weighted": Field(type="bool", doc="the router's weight is applied here, and not in expert_combine"),
    },
)


def reference(gate_up: torch.Tensor, weights: torch.Tensor, *, weighted: bool) -> torch.Tensor:
    """The op in float64. gate_up: [..., 2 * width]; weights: [...]; returns [..., width]."""
    gate, up = gate_up.double().chunk(2, -1)
    hidden = gate * gate.sigmoid() * up
    return hidden * weights.double()[..., None] if weighted else hidden
