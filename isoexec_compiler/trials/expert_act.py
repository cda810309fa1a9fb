"""Gated activations of the rows of experts; columns of gate and up on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler import routing
from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.expert_act import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def _run(module: Any, gate_up: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    import torch

    order = torch.arange(weights.numel(), dtype=torch.int32, device=weights.device).flip(0)
    rows = module.expert_act(gate_up.flatten(0, 1)[order.long()], weights, order)
    return routing.by_slot(rows, order, (*weights.shape,))


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`expert_act` of rows [rows, top_k, 2 * width] that lie in another order than their slots."""
    import torch

    top_k, width, weighted = int(attributes["top_k"]), int(attributes["width"]), bool(attributes["weighted"])
    gate_up = draw.rows(rows * top_k, 2 * width).view(rows, top_k, 2 * width)
    weights = draw.normal(rows, top_k, dtype=torch.float32).softmax(-1)
    call = Call(
        arguments=(gate_up, weights),
        rows=(0, 1),
        truth=lambda: (reference(gate_up, weights, weighted=weighted),),
        run=_run,
    )
    return {"expert_act": call}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its columns of gate and of up."""
    import torch

    gate_up, weights = arguments
    gate, up = gate_up.chunk(2, -1)
    ranks = zip(gate.chunk(size, -1), up.chunk(size, -1), strict=True)
    return torch.cat([_run(module, torch.cat(pair, -1), weights) for pair in ranks], -1)
