"""SwiGLU between the projections of an expert, times the router's weight where the model puts it there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

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


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many (token, expert) rows for each function of a kernel module, by its name."""
    import torch

    top_k, width = int(attributes["top_k"]), int(attributes["width"])
    tokens = max(1, rows // top_k)
    gate_up = torch.empty(tokens * top_k, 2 * width, dtype=dtype, device=device)
    weights = torch.empty(tokens, top_k, device=device)
    return {"expert_act": (gate_up, weights, torch.zeros(tokens * top_k, dtype=torch.int32, device=device))}
