# SPDX-License-Identifier: Apache-2.0
"""Dense collectives with gradients: forward, the contract's tree over ranks; backward, plain torch.

No bit of a gradient is promised, so the backward sums where torch sums.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .regions import ops
from .tree_collectives import (
    gather_rows,
    tree_all_reduce,
    tree_reduce_scatter,
    vocab_sums,
    vocab_target,
)

Group = dist.ProcessGroup


class TreeAllReduce(torch.autograd.Function):
    """fp32 nodes [T, N] of every rank -> the rounded root [T, N] on every rank. Backward: the gradient, in fp32."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, region: str, group: Group) -> torch.Tensor:
        return tree_all_reduce(part, group, lambda parts: ops.combine(parts, region))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad.float(), None, None


class TreeReduceScatter(torch.autograd.Function):
    """fp32 nodes [T, N] of every rank -> this rank's slice [T/W, N] of the rounded root, by the very tree of the
    all-reduce. Backward: the gathered gradient, in fp32."""

    @staticmethod
    def forward(ctx: Any, part: torch.Tensor, region: str, group: Group) -> torch.Tensor:
        ctx.group = group
        return tree_reduce_scatter(part, group, lambda parts: ops.combine(parts, region))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gather_rows(grad, ctx.group).float(), None, None


class VocabEmbedding(torch.autograd.Function):
    """ids [T] and a vocabulary shard [V/W, H] -> rows [T, H], selected by bits: a sum would turn -0.0 into +0.0.

    Backward: every rank adds the rows of its own shard, in fp32.
    """

    @staticmethod
    def forward(ctx: Any, ids: torch.Tensor, weight: torch.Tensor, region: str, group: Group) -> torch.Tensor:
        start = dist.get_rank(group) * weight.shape[0]
        ctx.save_for_backward(ids - start)
        ctx.rows = weight.shape[0]
        rows = ops.embedding(ids, weight, start, region)
        return tree_all_reduce(rows, group, lambda parts: ops.select(parts, region))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor, None, None]:
        (local,) = ctx.saved_tensors
        mine = (local >= 0) & (local < ctx.rows)
        out = grad.new_zeros(ctx.rows, grad.shape[1], dtype=torch.float32)
        out.index_add_(0, local[mine], grad[mine].float())
        return None, out.to(grad.dtype), None, None


class VocabLogprobs(torch.autograd.Function):
    """fp32 logits [T, V/W] of this rank's vocabulary and targets [T] -> log-probabilities [T] in nats on every rank.

    The target's logit is selected; the leaf sums of all ranks are combined by the region's tree. Backward: the region's
    own gradient of this rank's columns.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor, region: str, group: Group) -> torch.Tensor:
        ctx.start, ctx.region = dist.get_rank(group) * logits.shape[1], region
        sums = vocab_sums(ops.shard_sums(logits, ctx.start, region), group)
        ctx.save_for_backward(logits, targets, ops.normaliser(sums, region))
        return ops.finish(sums, vocab_target(ops.shard_target(logits, targets, ctx.start, region), group), region)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        logits, targets, normalisers = ctx.saved_tensors
        return ops.shard_gradient(logits, targets, normalisers, grad, ctx.start, ctx.region), None, None, None
