# SPDX-License-Identifier: Apache-2.0
"""Sums in one explicit order, as in `trees`. A sum of two terms commutes, so no layout and no launch can move a bit."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.constexpr_function
def levels(length):
    """Height of the balanced tree over `length` terms, a power of two."""
    return length.bit_length() - 1


@triton.jit
def pair_sum(values):
    """fp32 [rows, n] -> [rows, 1]: the balanced tree of adjacent pairs; n is a power of two."""
    for _ in tl.static_range(levels(values.shape[1])):
        values = tl.sum(tl.reshape(values, [values.shape[0], values.shape[1] // 2, 2]), axis=2)
    return values


@triton.jit
def pair_sum_all(values):
    """fp32 [n] -> scalar: the same tree over one row."""
    for _ in tl.static_range(levels(values.shape[0]) - 1):
        values = tl.sum(tl.reshape(values, [values.shape[0] // 2, 2]), axis=1)
    return tl.sum(values)  # of the last two terms


@triton.jit
def pair_sum_rows(values):
    """fp32 [n, lanes] -> [1, lanes]: the same tree down every lane."""
    for _ in tl.static_range(levels(values.shape[0])):
        values = tl.sum(tl.reshape(values, [values.shape[0] // 2, 2, values.shape[1]]), axis=1)
    return values
