"""Small Triton kernels for controls and comparisons."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def _apply_kernel(x, out, size, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, FUNCTION(tl.load(x + place, mask=place < size, other=1.0)), place < size)


def apply(function: Any, x: torch.Tensor, block: int = 4096) -> torch.Tensor:
    """fp32 x [n] -> function(x) [n]."""
    out = torch.full_like(x, float("nan"))
    _apply_kernel[(triton.cdiv(x.numel(), block),)](
        x, out, x.numel(), FUNCTION=function, BLOCK=block, num_warps=4, enable_fp_fusion=False
    )
    return out


@triton.jit
def _stock_sums_kernel(x, out, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * WIDTH + tl.arange(0, WIDTH)), axis=0))


def stock_sums(x: torch.Tensor, num_warps: int) -> torch.Tensor:
    """fp32 x [T, width, a power of two] -> [T] by `tl.sum`, whose order is a matter of layout: a negative control."""
    out = torch.full_like(x[:, 0], float("nan"))
    _stock_sums_kernel[(x.shape[0],)](x, out, WIDTH=x.shape[1], num_warps=num_warps, enable_fp_fusion=False)
    return out
