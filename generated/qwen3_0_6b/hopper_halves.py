# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised tree product for few rows on Hopper: two warpgroups on one tile, half of the leaves each.

One producer warp copies both halves with the tensor memory accelerator. The right half of the tree meets the left one
in shared memory: there are half as many steps one after the other as in one warpgroup.
"""

from collections.abc import Mapping

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .hopper_leaves import root
from .hopper_tiles import BLOCK_K, SHARED_BYTES, corner, describe, multiprocessors, next_slot, store_tile


@gluon.jit
def _copy(x, weight, x_left, x_right, w_left, w_right, full, empty, rows, tiles, N: gl.constexpr, K: gl.constexpr,
          STAGES: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """Rows of a tile that `x` does not bring keep what was there: no row reads another's."""
    box: gl.constexpr = x.block_shape[0]
    BLOCK_N: gl.constexpr = weight.block_shape[0]
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = corner(tile, rows, N, 64, BLOCK_N, GROUP)
        for k in range(0, K // 2, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            ready = full.index(slot)
            mbarrier.expect(ready, 2 * (box + BLOCK_N) * BLOCK_K * 2)
            tma.async_copy_global_to_shared(x, [row, k], ready, x_left.index(slot).slice(0, box))
            tma.async_copy_global_to_shared(weight, [column, k], ready, w_left.index(slot))
            tma.async_copy_global_to_shared(x, [row, K // 2 + k], ready, x_right.index(slot).slice(0, box))
            tma.async_copy_global_to_shared(weight, [column, K // 2 + k], ready, w_right.index(slot))
            slot, phase = next_slot(slot, phase, STAGES)


@gluon.jit
def _multiply(out, staging, met, given, taken, anywhere, x_tiles, w_tiles, full, empty, rows, tiles,
              HALF: gl.constexpr, N: gl.constexpr, K: gl.constexpr, LEAVES: gl.constexpr, LEAF_DTYPE: gl.constexpr,
              STAGES: gl.constexpr, GROUP: gl.constexpr, STAGED: gl.constexpr):  # fmt: skip
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    slot = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        node, slot, phase = root(x_tiles, w_tiles, full, empty, slot, phase, met, anywhere, rows < 0, LEAVES // 2,
                                 K // LEAVES // BLOCK_K, LEAF_DTYPE, STAGES, layout)  # fmt: skip
        if HALF == 1:
            mbarrier.wait(taken, turn ^ 1)
            met.store(node)
            mbarrier.arrive(given)
        else:
            mbarrier.wait(given, turn)
            node += met.load(layout)
            row, column = corner(tile, rows, N, 64, BLOCK_N, GROUP)
            store_tile(out, staging, node, row, column, rows, N, STAGED)
            tma.store_wait(0)
            mbarrier.arrive(taken)
        turn ^= 1


@gluon.jit(do_not_specialize=["rows"])
def _hopper_halves_kernel(x, weight, out, anywhere, rows, N: gl.constexpr, K: gl.constexpr, LEAVES: gl.constexpr,
                          LEAF_DTYPE: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
                          STAGED: gl.constexpr):  # fmt: skip
    """x, weight: descriptors. out: a bfloat16 descriptor (STAGED), or the address of float32 [rows, N]. `anywhere`: an
    address."""
    BLOCK_N: gl.constexpr = weight.block_shape[0]
    x_left = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], x.layout)
    x_right = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], x.layout)
    w_left = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], weight.layout)
    w_right = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], weight.layout)
    met = gl.allocate_shared_memory(
        gl.float32, [64, BLOCK_N], gl.SwizzledSharedLayout(8, 1, min(4, BLOCK_N // 8), [1, 0])
    )
    staging = met._reinterpret(gl.bfloat16, [64, BLOCK_N], gl.NVMMASharedLayout(min(128, 2 * BLOCK_N), 16, 2))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    given = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    gdc_launch_dependents()
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    mbarrier.init(given, count=1)
    mbarrier.init(taken, count=1)
    tiles = (rows + 63) // 64 * ((N + BLOCK_N - 1) // BLOCK_N)
    gdc_wait()
    gl.warp_specialize(
        [
            (_multiply, (out, staging, met, given, taken, anywhere, x_left, w_left, full, empty, rows, tiles,
                         0, N, K, LEAVES, LEAF_DTYPE, STAGES, GROUP, STAGED)),
            (_multiply, (out, staging, met, given, taken, anywhere, x_right, w_right, full, empty, rows, tiles,
                         1, N, K, LEAVES, LEAF_DTYPE, STAGES, GROUP, STAGED)),
            (_copy, (x, weight, x_left, x_right, w_left, w_right, full, empty, rows, tiles, N, K, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def hopper_halves(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    leaves: int,
    launch: Mapping,
    leaf_dtype: gl.dtype = gl.float32,
) -> None:
    """out [rows, N] = the tree over `leaves` (2, 4, 8) of x [rows, K] times weight [N, K] transposed, rounded once.

    x and weight are contiguous bfloat16, aligned to 16 bytes, K a multiple of 64 * leaves. out is contiguous, bfloat16
    or float32, N a multiple of 8. `launch` moves no bit: tiles are 64 rows by `block_n` outputs (at most 128), at most
    `num_stages` of each half in flight; `group` row tiles share weights in L2.
    """
    rows, columns = out.shape
    staged, block_n = out.dtype == torch.bfloat16, min(launch["block_n"], 128)
    stages = min(launch["num_stages"], (SHARED_BYTES - 64 * block_n * 4) // (2 * (64 + block_n) * BLOCK_K.value * 2))
    tiles = triton.cdiv(rows, 64) * triton.cdiv(columns, block_n)
    _hopper_halves_kernel[(min(tiles, multiprocessors(x.device)),)](
        describe(x, min(64, max(16, triton.next_power_of_2(rows))), BLOCK_K.value),
        describe(weight, block_n, BLOCK_K.value), describe(out, 64, block_n) if staged else out, out, rows, columns,
        x.shape[1], leaves, leaf_dtype, stages, launch["group"], staged,
        num_warps=4, enable_fp_fusion=False, launch_pdl=launch["overlap"],
    )  # fmt: skip
