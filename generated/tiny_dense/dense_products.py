# SPDX-License-Identifier: Apache-2.0
"""What the matrix products share: the checks of their operands, and their gradients."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch


def check_operands(
    x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, outputs: Container[int], sums: Container[int]
) -> None:
    """Raises ValueError unless x is [T, K] and weight [N, K] of `dtype`, N in `outputs`, K in `sums`, weight dense."""
    shapes = f"matmul: x {tuple(x.shape)} and weight {tuple(weight.shape)}"
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or x.shape[1] not in sums:
        raise ValueError(f"{shapes} must be matrices with the same number of columns, one of {sums}")
    if weight.shape[0] not in outputs:
        raise ValueError(f"{shapes}: the weight must have one of {outputs} rows")
    if x.dtype != dtype or weight.dtype != dtype:
        raise ValueError(f"matmul: x {x.dtype} and weight {weight.dtype} must be {dtype}")
    if not weight.is_contiguous() or weight.data_ptr() % 16:
        raise ValueError("matmul: the weight must be contiguous and aligned to 16 bytes")


def aligned(x: torch.Tensor) -> torch.Tensor:
    """x itself, or a contiguous copy aligned to 16 bytes."""
    return x.contiguous() if x.data_ptr() % 16 == 0 else x.clone(memory_format=torch.contiguous_format)


def gradients(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Gradients of x and weight, saved in this order, through torch's products in their dtype: no bit contract.

    They sum over outputs and over rows, so that no tree of the forward sum is concerned.
    """
    x, weight = ctx.saved_tensors
    grad = grad.to(weight.dtype)
    return (
        grad @ weight if ctx.needs_input_grad[0] else None,
        grad.T @ x if ctx.needs_input_grad[1] else None,
    )
