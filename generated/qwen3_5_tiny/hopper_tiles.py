# SPDX-License-Identifier: Apache-2.0
"""What the warp-specialised products for Hopper share: the order of tiles, the ring they pass, and their stores."""

from functools import cache

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

BLOCK_K = gl.constexpr(64)
SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers


@gluon.jit
def corner(tile, rows, N: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, GROUP: gl.constexpr):
    """First row and output of a tile: GROUP row tiles by all outputs, then the next."""
    columns: gl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    first = tile // (GROUP * columns) * GROUP
    height = min((rows + BLOCK_M - 1) // BLOCK_M - first, GROUP)
    inside = tile % (GROUP * columns)
    return (first + inside % height) * BLOCK_M, inside // height * BLOCK_N


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def store_tile(out, staging, node, row, column, rows, N: gl.constexpr, STAGED: gl.constexpr):
    """Begin to store [64, BLOCK_N] at (row, column): bfloat16 by the copy engine from `staging`, which must be free, or
    float32 from registers to the address of [rows, N]."""
    if STAGED:
        staging.store(node.to(out.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [row, column], staging)
    else:
        m = row + gl.arange(0, node.shape[0], gl.SliceLayout(1, node.type.layout))[:, None]
        n = column + gl.arange(0, node.shape[1], gl.SliceLayout(0, node.type.layout))[None, :]
        gl.store(out + m.to(gl.int64) * N + n, node, (m < rows) & (n < N))


@cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def describe(tensor: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Boxes of [rows, columns] of a bfloat16 matrix, for the tensor memory accelerator."""
    layout = gl.NVMMASharedLayout(min(128, 2 * columns), 16, 2)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), [rows, columns], layout)
