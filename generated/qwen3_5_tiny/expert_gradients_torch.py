# SPDX-License-Identifier: Apache-2.0
"""Gradients of a grouped GEMM, one expert after the other, in torch. No contract on their bits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch


def grouped_input_gradient(grad: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """grad: [R, N] in expert order; weight: [E, N, K]; offsets: int32 [E + 1]. Returns fp32 [R, K]."""
    out = torch.zeros(grad.shape[0], weight.shape[2], dtype=torch.float32)
    for expert, rows in _groups(offsets):
        out[rows] = grad[rows].float() @ weight[expert].float()
    return out


def grouped_weight_gradient(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """grad: [R, N], x: [R, K], both in expert order; offsets: int32 [E + 1]. Returns [E, N, K]; zeros without rows."""
    out = torch.zeros(offsets.numel() - 1, grad.shape[1], x.shape[1], dtype=x.dtype)
    for expert, rows in _groups(offsets):
        out[expert] = (grad[rows].float().T @ x[rows].float()).to(x.dtype)
    return out


def _groups(offsets: torch.Tensor) -> Iterator[tuple[int, slice]]:
    for expert, (first, end) in enumerate(pairwise(offsets.tolist())):
        if end > first:
            yield expert, slice(first, end)
