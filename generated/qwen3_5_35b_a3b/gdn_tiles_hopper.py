# SPDX-License-Identifier: Apache-2.0
"""Tiles of a chunk on Hopper (Gluon): their copies into shared memory, and blocks of 16 rows as left operands."""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .hopper_rows import advance


@gluon.jit
def copy_tiles(sources, ring, ready, empty, begin, first, step, chunks, unit, head, shared, value,
               HV: gl.constexpr, OUT: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Tiles of `chunks` chunks, from the chunk `first` on by `step`, as slots of the ring come free."""
    q, k, v, d, c, f, scalars = sources
    q_tiles, k_tiles, v_tiles, d_tiles, c_tiles, f_tiles, scalar_tiles = ring
    K: gl.constexpr = k_tiles.shape[2]
    V: gl.constexpr = v_tiles.shape[2]
    PARTS: gl.constexpr = 64 // f_tiles.shape[2]
    slot = 0
    phase = 0
    for i in range(chunks):
        chunk = first + i * step
        row = begin + chunk * 64
        full = ready.index(slot)
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(full, 128 * (K + V + 80) + 768 + (128 * (K + 64) if OUT else 0))
        tma.async_copy_global_to_shared(k, [row, shared * K], full, k_tiles.index(slot))
        for b in gl.static_range(3):
            cell = (unit + chunk * HV) * 192 + b * 64
            tma.async_copy_global_to_shared(scalars, [cell], full, scalar_tiles.index(slot * 3 + b))
        tma.async_copy_global_to_shared(v, [row, value], full, v_tiles.index(slot))
        for b in gl.static_range(4):
            tma.async_copy_global_to_shared(c, [row, head * 64 + b * 16], full, c_tiles.index(slot * 4 + b))
        tma.async_copy_global_to_shared(d, [row, head * 32], full, d_tiles.index(slot))
        if OUT:
            tma.async_copy_global_to_shared(q, [row, shared * K], full, q_tiles.index(slot))
            for b in gl.static_range(PARTS):
                column = head * 64 + b * (64 // PARTS)
                tma.async_copy_global_to_shared(f, [row, column], full, f_tiles.index(slot * PARTS + b))
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def _halves(x):
    return gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@gluon.jit
def _beside(x, y):
    return gl.reshape(gl.permute(gl.join(x, y), (0, 2, 1)), (x.shape[0], 2 * x.shape[1]))


@gluon.jit
def block(x, B: gl.constexpr):
    """Columns [16 B, 16 B + 16) of x [64, 64]."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    low, high = _halves(x)
    first, second = _halves(low if B < 2 else high)
    return gl.convert_layout(first if B % 2 == 0 else second, layout, assert_trivial=True)


@gluon.jit
def joined(a, b, c, d):
    """[64, 64] of four blocks of 16 columns."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    return gl.convert_layout(_beside(_beside(a, b), _beside(c, d)), layout, assert_trivial=True)


@gluon.jit
def start(left, right):
    """left [64, k] bf16, from registers, times shared right [k, n]; left running."""
    N: gl.constexpr = right.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    operand = gl.convert_layout(left, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)
    return warpgroup_mma(operand, right, gl.zeros([64, N], gl.float32, layout), use_acc=False, is_async=True)


@gluon.jit
def add(left, right, acc):
    """acc + left times right, left running."""
    N: gl.constexpr = right.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    operand = gl.convert_layout(left, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)
    return warpgroup_mma(operand, right, acc, is_async=True)


@gluon.jit
def scalar_row(tile, FIRST: gl.constexpr, LENGTH: gl.constexpr, rest, MASKED: gl.constexpr):
    """One scalar of rows [FIRST, FIRST + LENGTH) as [1, LENGTH], zero from `rest` on if MASKED."""
    layout: gl.constexpr = gl.SliceLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, LENGTH, 16]))
    x = tile.slice(FIRST, LENGTH).load(layout)
    if MASKED:
        x = gl.where(FIRST + gl.arange(0, LENGTH, layout) < rest, x, 0.0)
    return x[None, :]


@gluon.jit
def corner(tiles, stage, ROW: gl.constexpr, COLUMN: gl.constexpr):
    """Block (ROW, COLUMN) of the chunk's C."""
    return tiles.index(4 * stage + COLUMN).slice(16 * ROW, 16)


@gluon.jit
def send(tile, descriptor, target, row, column, rest, STRIDE: gl.constexpr, MASKED: gl.constexpr):
    """A tile of 64 rows to its place; whole, that of a short chunk would reach into the next sequence."""
    if MASKED:
        W: gl.constexpr = tile.shape[1]
        layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // W, W // 8], [4, 1], [1, 0])
        r = gl.arange(0, 64, gl.SliceLayout(1, layout))
        cells = (row + r).to(gl.int64)[:, None] * STRIDE + column + gl.arange(0, W, gl.SliceLayout(0, layout))[None, :]
        gl.store(target + cells, tile.load(layout), mask=(r < rest)[:, None])
    else:
        fence_async_shared()
        tma.async_copy_shared_to_global(descriptor, [row, column], tile)


def matrix(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """x as a matrix by its first axis, in tiles of rows x columns."""
    flat = x.view(x.shape[0], -1)
    layout = gl.NVMMASharedLayout(min(128, columns * x.element_size()), 8 * x.element_size(), 2)
    return TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [rows, columns], layout)


def scalar_vector(scalars: torch.Tensor) -> TensorDescriptor:
    """All scalars in a row, read by 64."""
    return TensorDescriptor(scalars.view(-1), [scalars.numel()], [1], [64], gl.NVMMASharedLayout(0, 32, 1))
