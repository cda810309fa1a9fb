# SPDX-License-Identifier: Apache-2.0
"""Gradient of the router's weights with respect to its logits; no contract on its bits, no atomics."""

from __future__ import annotations

import torch


def logits_gradient(
    grad: torch.Tensor,
    scores: torch.Tensor,
    experts: torch.Tensor,
    weights: torch.Tensor,
    selected: bool,
    scaling: float,
) -> torch.Tensor:
    """grad, weights: fp32 [T, k]; experts: int32 [T, k]; scores: fp32 [T, E]. Returns fp32 [T, E].

    `selected`: the weights are a softmax over the chosen logits alone, which renormalised probabilities also are.
    """
    product = grad * weights
    chosen = experts.long()
    total = product.sum(1, keepdim=True)
    if selected:
        return torch.zeros_like(scores).scatter_(1, chosen, product - weights * (total / scaling))
    dense = -torch.softmax(scores, 1) * total
    return dense.scatter_(1, chosen, dense.gather(1, chosen) + product)
