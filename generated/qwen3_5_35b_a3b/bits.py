# SPDX-License-Identifier: Apache-2.0
"""Tensors as integers: exact comparison, order-free row digests, shard-additive fingerprints.

A digest here is a sum of well-mixed 64-bit integers modulo 2**64, so it does not depend on the order of rows, on how
rows were batched, or on how a tensor was cut over ranks. It detects accidents; it is no signature against an adversary.
"""

from __future__ import annotations

import torch

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MULTIPLIERS = (-0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
_LOW_BITS = {30: (1 << 34) - 1, 27: (1 << 37) - 1, 31: (1 << 33) - 1}


def integer_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of `tensor` as integers of the same width: -0.0 differs from +0.0, and equal NaNs are equal."""
    return tensor.contiguous().view(_INTEGER[tensor.element_size()])


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements of two tensors of one shape and dtype differ in any bit.

    Raises ValueError when shapes or dtypes differ.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ValueError(f"cannot compare {a.dtype} {tuple(a.shape)} with {b.dtype} {tuple(b.shape)}")
    return int((integer_view(a) != integer_view(b)).sum())


def _shift(x: torch.Tensor, count: int) -> torch.Tensor:
    return (x >> count) & _LOW_BITS[count]  # a logical shift: torch shifts the sign in


def mix(x: torch.Tensor) -> torch.Tensor:
    """A bijection of int64 in which every input bit moves about half of the output bits (splitmix64's finaliser)."""
    x = (x ^ _shift(x, 30)) * _MULTIPLIERS[1]
    x = (x ^ _shift(x, 27)) * _MULTIPLIERS[2]
    return x ^ _shift(x, 31)


def _positions(start: int, count: int, device: torch.device) -> torch.Tensor:
    return torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device)


def row_digests(rows: torch.Tensor) -> torch.Tensor:
    """One int64 for each row of `rows` [..., width], of the row's bits and their columns -> [rows] int64."""
    words = integer_view(rows).reshape(-1, rows.shape[-1]).to(torch.int64)
    columns = _positions(0, words.shape[1], words.device) * _MULTIPLIERS[0]
    return mix(mix(words + columns)).sum(dim=1)


def fingerprint(shard: torch.Tensor, row: int = 0, column: int = 0) -> int:
    """Digest of a shard whose first element stands at (`row`, `column`) of the whole tensor, modulo 2**64.

    Shards of more than two dimensions are taken as [first, rest]. The sum over disjoint shards that cover a tensor is
    the fingerprint of the tensor.
    """
    words = integer_view(shard.detach())
    words = words.reshape(words.shape[0] if words.dim() > 1 else 1, -1)
    rows = mix(_positions(row, words.shape[0], words.device) * _MULTIPLIERS[0])
    columns = _positions(column, words.shape[1], words.device) * _MULTIPLIERS[0]
    total = 0
    # In slabs: an int64 copy of a whole embedding would quadruple it.
    step = max(1, (1 << 22) // max(1, words.shape[1]))
    for start in range(0, words.shape[0], step):
        slab = words[start : start + step].to(torch.int64)
        total += int(mix(mix(slab + columns) + rows[start : start + step, None]).sum())
    return total % (1 << 64)
