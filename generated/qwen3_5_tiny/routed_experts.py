# SPDX-License-Identifier: Apache-2.0
"""The routed experts of one layer, on one rank, on ranks that own experts, or on ranks that share every expert's width.

The bits are those of one rank: rows travel unrounded in fp32, nodes of the leaf tree are added pairwise by ascending
rank, and the owner of a token adds its rows in the order of its slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from .expert_exchange import exchange, splits
from .tree_collectives import gather_rows, tree_all_reduce, tree_reduce_scatter

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The functions of the regions, as their kernel files define them."""

    dispatch: Function
    gate_up: Function
    act: Function
    down: Function
    expert_combine: Function
    combine: Function


class _ByExpert(torch.autograd.Function):
    """Tokens [T, H] -> one row per slot, in expert order. Backward: a token's rows added in fp32 in slot order."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, order: torch.Tensor, top_k: int) -> torch.Tensor:
        ctx.save_for_backward(order)
        ctx.shape, ctx.top_k = x.shape, top_k
        return x[order // top_k]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (order,) = ctx.saved_tensors
        slots = torch.empty_like(grad).index_copy_(0, order.long(), grad)
        return slots.view(ctx.shape[0], ctx.top_k, ctx.shape[1]).float().sum(1).to(grad.dtype), None, None


class _BySlot(torch.autograd.Function):
    """Rows in expert order -> rows in slot order."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(order)
        return torch.empty_like(rows).index_copy_(0, order.long(), rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad[ctx.saved_tensors[0]], None


class _SumNodes(torch.autograd.Function):
    """Nodes [n, H] of every rank -> their root, not rounded, on every rank. Backward: to the own node."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, group: Any) -> torch.Tensor:
        return tree_all_reduce(rows, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _CombineNodes(torch.autograd.Function):
    """Nodes [T, k, H] of every rank -> the combined tokens, all or this rank's slice. Backward: to the own node."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, weights: torch.Tensor, combine: Function, group: Any, scatter: bool
    ) -> Any:
        ctx.shape, ctx.group, ctx.scatter = rows.shape, group, scatter
        return combined_nodes(rows, weights, combine, group, scatter)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grad = gather_rows(grad, ctx.group) if ctx.scatter else grad
        return grad.float()[:, None].expand(ctx.shape).contiguous(), None, None, None, None


def combined_nodes(
    rows: torch.Tensor, weights: torch.Tensor, combine: Function, group: dist.ProcessGroup, scatter: bool = False
) -> torch.Tensor:
    """`combine` of the ranks' nodes, [T, H] on every rank or, with `scatter`, this rank's T/W rows.

    rows: this rank's nodes, fp32 [T, k, H]; weights: fp32 [T, k].
    """
    tokens, rank = rows.shape[0], dist.get_rank(group)
    share = -(-tokens // dist.get_world_size(group))

    def finish(parts: torch.Tensor) -> torch.Tensor:
        first = 0 if parts.shape[1] == tokens else min(rank * share, tokens)
        return combine(parts, weights[first : first + parts.shape[1]])

    return (tree_reduce_scatter if scatter else tree_all_reduce)(rows, group, finish)


def routed_experts(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kernels: Kernels,
) -> torch.Tensor:
    """All experts on this rank. x: [T, H]; chosen: int32 [T, k]; weights: fp32 [T, k]; gate_up: [E, 2I, H]; down:
    [E, H, I]. Returns [T, H]. Differentiable in x, weights, gate_up and down; CUDA graphs can hold it."""
    return kernels.expert_combine(expert_rows(x, chosen, weights, gate_up, down, kernels), weights)


def experts_by_width(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kernels: Kernels,
    group: dist.ProcessGroup,
    scatter: bool = False,
) -> torch.Tensor:
    """Every rank holds a share of every expert's width and the same tokens; the nodes are added before the slots.

    As `routed_experts`, with gate_up [E, 2I/W, H], this rank's gate rows then its up rows, and down [E, H, I/W].
    Returns [T, H] on every rank or, with `scatter`, this rank's T/W rows. Differentiable where the weights of the
    router are applied in expert_act; the gradients of x and weights are this rank's share of a sum.
    """
    return _CombineNodes.apply(
        expert_rows(x, chosen, weights, gate_up, down, kernels), weights, kernels.combine, group, scatter
    )


def experts_by_owner(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kernels: Kernels,
    group: dist.ProcessGroup,
    sharers: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Rank r of W owns experts [r * E / W, (r + 1) * E / W) and tokens of its own, any number, also none.

    As `routed_experts`, with gate_up [E/W, 2I, H] and down [E/W, H, I]; chosen counts all experts. With `sharers`, the
    ranks of that group own the same experts and tokens and hold shares of their width, as in `experts_by_width`; the
    nodes are added before they travel back. Tokens travel in the model dtype, weights and rows in fp32. Returns this
    rank's [T, H]. Differentiable as `routed_experts`, with `sharers` as `experts_by_width`; waits for the device once,
    for the sizes. Raises ValueError if the ranks cannot share the experts equally.
    """
    top_k, owned = chosen.shape[1], gate_up.shape[0]
    order, offsets = kernels.dispatch(chosen, owned * dist.get_world_size(group))
    there = splits(offsets, group)
    local = exchange(chosen.flatten()[order][:, None], there) - dist.get_rank(group) * owned
    sent_weights = exchange(weights.flatten()[order][:, None], there)
    tokens = exchange(_ByExpert.apply(x, order, top_k), there)
    rows = expert_rows(tokens, local, sent_weights, gate_up, down, kernels).flatten(0, 1)
    if sharers is not None:
        rows = _SumNodes.apply(rows, sharers)
    rows = _BySlot.apply(exchange(rows, there.reverse()), order)
    return kernels.expert_combine(rows.view(x.shape[0], top_k, x.shape[1]), weights)


def expert_rows(
    x: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    kernels: Kernels,
) -> torch.Tensor:
    """fp32 [T, k, H]: each token by each of its experts, or a node of it when the weights are shares of the width."""
    order, offsets = kernels.dispatch(chosen, gate_up.shape[0])
    activated = kernels.act(kernels.gate_up(x, gate_up, order, offsets), weights, order)
    return kernels.down(activated, down, order, offsets).view(*chosen.shape, x.shape[1])
