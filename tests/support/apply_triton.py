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


@triton.jit
def _product_sums_kernel(a, b, c, out, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + place, tl.load(a + place) * tl.load(b + place) + tl.load(c + place))


def product_sums(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, *, fusion: bool) -> torch.Tensor:
    """a * b + c of fp32 [n], n a multiple of 1024, with the compiler free to fuse the two or not: a control."""
    out = torch.full_like(a, float("nan"))
    _product_sums_kernel[(a.numel() // 1024,)](a, b, c, out, BLOCK=1024, num_warps=4, enable_fp_fusion=fusion)
    return out


@triton.jit
def _dot_kernel(a, b, out, PRECISION: tl.constexpr):
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    tile = tl.program_id(0) * 16 + column
    width = tl.num_programs(0) * 16
    product = tl.dot(tl.load(a + row * 16 + column), tl.load(b + row * width + tile), input_precision=PRECISION)
    tl.store(out + row * width + tile, product)


def dots(a: torch.Tensor, b: torch.Tensor, precision: str) -> torch.Tensor:
    """fp32 a [16, 16] times b [16, n], n a multiple of 16, by tensor-core dots of this `input_precision`: a control."""
    out = torch.full_like(b, float("nan"))
    _dot_kernel[(b.shape[1] // 16,)](a, b, out, PRECISION=precision, num_warps=4, enable_fp_fusion=False)
    return out
