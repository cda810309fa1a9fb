# SPDX-License-Identifier: Apache-2.0
"""Gradients of a grouped GEMM: each element one sum in a fixed order, without atomics. No contract on their bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .expert_tiles import tiles

BLOCK = 64
STEP = 32
FIXED = {"BLOCK": BLOCK, "STEP": STEP, "num_warps": 4, "num_stages": 3, "enable_fp_fusion": False}


@triton.jit
def _input_gradient_kernel(grad, weight, table, live, out, INNER: tl.constexpr, COLUMNS: tl.constexpr,
                           BLOCK: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """A tile of grad [R, INNER] times weight [E, INNER, COLUMNS] of the rows' expert."""
    if tl.program_id(1) >= tl.load(live):
        return
    tile = table + tl.program_id(1) * 3
    expert = tl.load(tile)
    row = tl.load(tile + 1) + tl.arange(0, BLOCK)
    live = row < tl.load(tile + 2)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, INNER, STEP):
        k = first + tl.arange(0, STEP)
        a = tl.load(
            grad + row.to(tl.int64)[:, None] * INNER + k[None, :], mask=live[:, None] & (k < INNER)[None, :], other=0.0
        )
        b = tl.load(
            weight + (expert.to(tl.int64) * INNER + k)[:, None] * COLUMNS + column[None, :],
            mask=(k < INNER)[:, None] & (column < COLUMNS)[None, :],
            other=0.0,
        )
        acc = tl.dot(a, b, acc)
    mask = live[:, None] & (column < COLUMNS)[None, :]
    tl.store(out + row.to(tl.int64)[:, None] * COLUMNS + column[None, :], acc, mask=mask)


@triton.jit
def _weight_gradient_kernel(grad, x, offsets, out, INNER: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
                            STEP: tl.constexpr):  # fmt: skip
    """A tile of the expert's transposed grad [n, INNER] times its rows x [n, COLUMNS], over all its rows in order."""
    expert = tl.program_id(2)
    start, end = tl.load(offsets + expert), tl.load(offsets + expert + 1)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(start, end, STEP):
        row = (first + tl.arange(0, STEP)).to(tl.int64)
        live = row < end
        a = tl.load(grad + row[None, :] * INNER + i[:, None], mask=live[None, :] & (i < INNER)[:, None], other=0.0)
        b = tl.load(x + row[:, None] * COLUMNS + j[None, :], mask=live[:, None] & (j < COLUMNS)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    place = (expert.to(tl.int64) * INNER + i)[:, None] * COLUMNS + j[None, :]
    tl.store(out + place, acc.to(tl.bfloat16), mask=(i < INNER)[:, None] & (j < COLUMNS)[None, :])


def grouped_input_gradient(grad: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """grad: [R, N] bf16 in expert order; weight: [E, N, K] bf16; offsets: int32 [E + 1]. Returns fp32 [R, K]."""
    rows, inner = grad.shape
    columns = weight.shape[2]
    out = torch.empty(rows, columns, dtype=torch.float32, device=grad.device)
    if rows:
        table, live = tiles(offsets, rows, BLOCK)
        grid = (triton.cdiv(columns, BLOCK), table.shape[0])
        _input_gradient_kernel[grid](grad.contiguous(), weight, table, live, out, inner, columns, **FIXED)
    return out


def grouped_weight_gradient(grad: torch.Tensor, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """grad: [R, N] bf16, x: [R, K] bf16, both in expert order; offsets: int32 [E + 1]. Returns [E, N, K] bf16.

    Experts without rows get zeros.
    """
    inner, columns, experts = grad.shape[1], x.shape[1], offsets.numel() - 1
    out = torch.empty(experts, inner, columns, dtype=x.dtype, device=x.device)
    grid = (triton.cdiv(columns, BLOCK), triton.cdiv(inner, BLOCK), experts)
    _weight_gradient_kernel[grid](grad.contiguous(), x, offsets, out, inner, columns, **FIXED)
    return out
