# SPDX-License-Identifier: Apache-2.0
"""Backward passes that both targets share: deterministic, summed in fp32, without a claim on bits."""

from __future__ import annotations

import torch


def embedding_weight(ids: torch.Tensor, gradient: torch.Tensor, rows: int, start: int) -> torch.Tensor:
    """ids [T], gradient [T, H] -> [rows, H] of the gradient's dtype for the table rows [start, start + rows).

    Tokens of one id are summed in fp32 in an order fixed by sorting, not by arrival.
    """
    local = ids - start
    mine = ((local >= 0) & (local < rows)).nonzero()[:, 0]
    used, index = local[mine].unique(return_inverse=True)
    sums = torch.ops.aten.embedding_dense_backward(gradient[mine].float(), index, len(used), -1, False)
    return gradient.new_zeros(rows, gradient.shape[1]).index_copy_(0, used, sums.to(gradient.dtype))


def log_softmax_logits(logprobs: torch.Tensor, gradient: torch.Tensor, temperature: float) -> torch.Tensor:
    """fp32 [T, V] log-probabilities, -inf in the padding, and their gradient -> gradient of the logits [T, V]."""
    gradient = gradient.masked_fill(logprobs == -torch.inf, 0.0)
    return (gradient - logprobs.exp() * gradient.sum(-1, keepdim=True)) / temperature
