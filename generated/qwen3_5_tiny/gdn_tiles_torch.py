# SPDX-License-Identifier: Apache-2.0
"""Tile arithmetic of the gated delta rule on the CPU target: separate fp32 operations in one order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch

from . import elementary

CHUNK, BLOCK = 64, 16
LOG2E = float.fromhex("0x1.715476p+0")
LN2 = float.fromhex("0x1.62e430p-1")


def dot(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor | None = None) -> torch.Tensor:
    """total + a [..., M, K] times b [..., K, N] in fp32: over each 16 of k the balanced tree of adjacent pairs of
    rounded products, added by ascending k. K is a multiple of 16; a block of zeros changes nothing."""
    if total is None:
        total = a.new_zeros((*a.shape[:-1], b.shape[-1]), dtype=torch.float32)
    a, b = a.float(), b.float()
    for k in range(0, a.shape[-1], BLOCK):
        terms = a[..., k : k + BLOCK, None] * b[..., None, k : k + BLOCK, :]
        while terms.shape[-2] > 1:
            terms = terms[..., 0::2, :] + terms[..., 1::2, :]
        total = total + terms[..., 0, :]
    return total


def split(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """x as the sum of two parts of the model dtype; in fp32 the second is zero."""
    high = x.to(dtype)
    return high, (x - high.float()).to(dtype)


def exp2(x: torch.Tensor) -> torch.Tensor:
    """2**x in fp32 as exp(x * ln 2)."""
    return elementary.exp(x * LN2)


def spread(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[..., H, n, K] -> [..., heads, n, K]: each query/key head for the value heads that share it."""
    return x.repeat_interleave(heads // x.shape[-3], -3)


def chunks(cu_seqlens: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """(sequence, first row, rows) of every chunk, sequences in order."""
    for sequence, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
        for start in range(begin, end, CHUNK):
            yield sequence, start, min(CHUNK, end - start)


def tile(x: torch.Tensor, start: int, rows: int) -> torch.Tensor:
    """Rows [start, start + rows) of x [T, heads, ...] as [heads, 64, ...], zero beyond."""
    padded = x.new_zeros((CHUNK, *x.shape[1:]))
    padded[:rows] = x[start : start + rows]
    return padded.transpose(0, 1)


def block_diagonal(d: torch.Tensor) -> torch.Tensor:
    """[..., 64, 16] -> [..., 64, 64]: each row's 16 columns in its own block, zero elsewhere."""
    row, column = torch.arange(CHUNK)[:, None], torch.arange(CHUNK)[None, :]
    return torch.where(row // BLOCK == column // BLOCK, d.repeat(*(1,) * (d.dim() - 1), CHUNK // BLOCK), 0)
