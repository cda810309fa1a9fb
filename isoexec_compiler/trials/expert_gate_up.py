"""Tokens by the first projection of their experts; columns or experts on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler import routing
from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.expert_gate_up import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def _run(module: Any, x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    order, offsets = routing.by_expert(experts, weight.shape[0])
    return routing.by_slot(module.expert_gate_up(x, weight, order, offsets), order, (*experts.shape,))


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`expert_gate_up`, its rows brought back to the order of slots."""
    import torch

    experts, top_k, hidden, width = (int(attributes[name]) for name in ("experts", "top_k", "hidden", "width"))
    x = draw.rows(rows, hidden)
    weight = draw.weight(experts * 2 * width, hidden).view(experts, 2 * width, hidden)
    choice = routing.chosen(draw, rows, top_k, experts)
    order = torch.randperm(hidden, generator=draw.generator, device=draw.device)
    call = Call(
        arguments=(x, weight, choice),
        rows=(0, 2),
        truth=lambda: (reference(x, weight, choice),),
        reordered=lambda: (x[:, order], weight[..., order], choice),
        run=_run,
    )
    return {"expert_gate_up": call}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its columns of every expert."""
    import torch

    x, weight, experts = arguments
    return torch.cat([_run(module, x, part.contiguous(), experts) for part in weight.chunk(size, 1)], -1)


def spread(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor:
    """Each rank has its experts."""
    x, weight, experts = arguments
    rows = x[:, None].expand(-1, experts.shape[1], -1)
    return routing.on_ranks(module.expert_gate_up, rows, weight, experts, size)
