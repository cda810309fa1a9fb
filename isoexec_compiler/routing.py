"""Slots in the order of their experts, for calls of expert kernels: integers only, without a transfer to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw

if TYPE_CHECKING:
    import torch


def chosen(draw: Draw, tokens: int, top_k: int, experts: int) -> torch.Tensor:
    """int32 [tokens, top_k]: different experts for each token; low ones far more often, some perhaps never."""
    import torch

    skew = torch.linspace(4, 0, experts, device=draw.device)
    scores = draw.normal(tokens, experts, dtype=torch.float32) + skew
    return scores.topk(top_k).indices.to(torch.int32)


def by_expert(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """experts int32 [T, k] -> order int32 [T * k], slots by expert and ascending, and offsets int32 [count + 1]."""
    import torch

    flat = experts.flatten()
    counts = (flat[:, None] == torch.arange(count, device=flat.device)).sum(0)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return flat.argsort(stable=True).to(torch.int32), offsets.to(torch.int32)


def by_slot(rows: torch.Tensor, order: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """Rows in the order of `order` back in the order of slots, [*shape, columns]."""
    return rows.new_zeros(rows.shape).index_copy_(0, order.long(), rows).view(*shape, rows.shape[-1])


def on_ranks(function: Any, rows: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor, size: int) -> torch.Tensor:
    """What `size` ranks with equal shares of the experts compute of rows [T, k, K], each rank its own rows: [T, k, N].

    Every rank gets the rows of its experts as tokens of one slot each, as after an all-to-all.
    """
    import torch

    order, offsets = by_expert(experts, weight.shape[0])
    share, bounds, parts = weight.shape[0] // size, offsets.tolist(), []
    for rank in range(size):
        first, last = rank * share, (rank + 1) * share
        mine = rows.flatten(0, 1)[order[bounds[first] : bounds[last]].long()]
        local = torch.arange(len(mine), dtype=torch.int32, device=mine.device)
        if len(mine):
            parts.append(function(mine, weight[first:last], local, offsets[first : last + 1] - bounds[first]))
    return by_slot(torch.cat(parts), order, (*experts.shape,))
