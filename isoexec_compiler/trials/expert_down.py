"""Activations by the second projection of their experts; leaves or experts on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler import routing
from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.expert_down import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def _run(module: Any, hidden: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    order, offsets = routing.by_expert(experts, weight.shape[0])
    rows = module.expert_down(hidden.flatten(0, 1)[order.long()], weight, order, offsets)
    result: torch.Tensor = rows.view(*experts.shape, -1)
    return result


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`expert_down` of activations [rows, top_k, width]."""
    import torch

    experts, top_k, hidden, width = (int(attributes[name]) for name in ("experts", "top_k", "hidden", "width"))
    activated = draw.rows(rows * top_k, width).view(rows, top_k, width)
    weight = draw.weight(experts * hidden, width).view(experts, hidden, width)
    choice = routing.chosen(draw, rows, top_k, experts)
    order = torch.randperm(width, generator=draw.generator, device=draw.device)
    call = Call(
        arguments=(activated, weight, choice),
        rows=(0, 2),
        truth=lambda: (reference(activated, weight, choice),),
        reordered=lambda: (activated[..., order], weight[..., order], choice),
        run=_run,
    )
    return {"expert_down": call}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its leaves of every expert; their nodes are added pairwise by ascending rank."""
    hidden, weight, experts = arguments
    shares = zip(hidden.chunk(size, -1), weight.chunk(size, -1), strict=True)
    nodes = [_run(module, left.contiguous(), right.contiguous(), experts) for left, right in shares]
    while len(nodes) > 1:
        nodes = [left + right for left, right in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def spread(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor:
    """Each rank has its experts."""
    hidden, weight, experts = arguments
    return routing.on_ranks(module.expert_down, hidden, weight, experts, size)
