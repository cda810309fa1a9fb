# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised product for few rows and many outputs on Hopper: three warpgroups side by side on one tile of x.

One producer warp copies 64 rows of x and, for each warpgroup, 64 rows of the weight with the tensor memory
accelerator: x is read once for 192 outputs. Every sum is one chain of wgmma instructions by ascending k.
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

SIDES = gl.constexpr(3)
WIDE = gl.constexpr(3 * 64)


@gluon.jit
def _copy(x, weight, x_tiles, first, second, third, full, empty, rows, tiles, N: gl.constexpr, K: gl.constexpr,
          STAGES: gl.constexpr, GROUP: gl.constexpr):  # fmt: skip
    """The first turn of weights is asked for before the kernel before has ended, which cannot have written them.

    Rows of a tile that `x` does not bring keep what was there: no row reads another's.
    """
    box: gl.constexpr = x.block_shape[0]
    ahead: gl.constexpr = min(STAGES, K // BLOCK_K)
    row, column = corner(gl.program_id(0), rows, N, 64, WIDE, GROUP)
    for at in range(ahead):
        ready = full.index(at)
        mbarrier.expect(ready, (box + WIDE) * BLOCK_K * 2)
        tma.async_copy_global_to_shared(weight, [column, at * BLOCK_K], ready, first.index(at))
        tma.async_copy_global_to_shared(weight, [column + 64, at * BLOCK_K], ready, second.index(at))
        tma.async_copy_global_to_shared(weight, [column + 128, at * BLOCK_K], ready, third.index(at))
    gdc_wait()
    for at in range(ahead):
        tma.async_copy_global_to_shared(x, [row, at * BLOCK_K], full.index(at), x_tiles.index(at).slice(0, box))
    slot = ahead % STAGES
    phase = ahead // STAGES
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = corner(tile, rows, N, 64, WIDE, GROUP)
        begin = gl.where(tile == gl.program_id(0), ahead * BLOCK_K, 0)
        for k in range(begin, K, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (box + WIDE) * BLOCK_K * 2)
            tma.async_copy_global_to_shared(x, [row, k], ready, x_tiles.index(slot).slice(0, box))
            tma.async_copy_global_to_shared(weight, [column, k], ready, first.index(slot))
            tma.async_copy_global_to_shared(weight, [column + 64, k], ready, second.index(slot))
            tma.async_copy_global_to_shared(weight, [column + 128, k], ready, third.index(slot))
            slot, phase = next_slot(slot, phase, STAGES)


@gluon.jit
def _multiply(out, staging, anywhere, x_tiles, w_tiles, full, empty, rows, tiles, SIDE: gl.constexpr, N: gl.constexpr,
              K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, STAGED: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    slot = 0
    phase = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        row, column = corner(tile, rows, N, 64, WIDE, GROUP)
        sums, slot, phase = root(x_tiles, w_tiles, full, empty, slot, phase, staging, anywhere, False, 1, K // BLOCK_K,
                                 gl.float32, STAGES, layout)  # fmt: skip
        tma.store_wait(0)
        store_tile(out, staging, sums, row, column + SIDE * 64, rows, N, STAGED)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rows"])
def _hopper_columns_kernel(x, weight, out, rows, N: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr,
                           GROUP: gl.constexpr, STAGED: gl.constexpr):  # fmt: skip
    """x, weight: descriptors. out: a bfloat16 descriptor (STAGED), or the address of float32 [rows, N]."""
    x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], x.layout)
    first = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], weight.layout)
    second = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], weight.layout)
    third = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], weight.layout)
    staging = gl.allocate_shared_memory(gl.bfloat16, [SIDES, 64, 64], gl.NVMMASharedLayout(128, 16, 2))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    gdc_launch_dependents()
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=SIDES)
    tiles = (rows + 63) // 64 * ((N + WIDE - 1) // WIDE)
    gl.warp_specialize(
        [
            (_multiply, (out, staging.index(0), out, x_tiles, first, full, empty, rows, tiles,
                         0, N, K, STAGES, GROUP, STAGED)),
            (_multiply, (out, staging.index(1), out, x_tiles, second, full, empty, rows, tiles,
                         1, N, K, STAGES, GROUP, STAGED)),
            (_multiply, (out, staging.index(2), out, x_tiles, third, full, empty, rows, tiles,
                         2, N, K, STAGES, GROUP, STAGED)),
            (_copy, (x, weight, x_tiles, first, second, third, full, empty, rows, tiles, N, K, STAGES, GROUP)),
        ],
        [4, 4, 1],
        [152, 152, 24],
    )  # fmt: skip


def hopper_columns(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, launch: Mapping) -> None:
    """out [rows, N] = x [rows, K] times weight [N, K] transposed, rounded once.

    x and weight are contiguous bfloat16, aligned to 16 bytes, K a multiple of 64. out is contiguous, bfloat16 or
    float32, N a multiple of 8. `launch` moves no bit: at most `num_stages` tiles are in flight; `group` row tiles share
    weights in L2. With `overlap` no kernel that triggers its dependents early may have written the weight since the
    last one that does not.
    """
    rows, columns = out.shape
    staged = out.dtype == torch.bfloat16
    stage, held = (64 + WIDE.value) * BLOCK_K.value * 2, 64 * WIDE.value * 2
    tiles = triton.cdiv(rows, 64) * triton.cdiv(columns, WIDE.value)
    _hopper_columns_kernel[(min(tiles, multiprocessors(x.device)),)](
        describe(x, min(64, max(16, triton.next_power_of_2(rows))), BLOCK_K.value),
        describe(weight, 64, BLOCK_K.value), describe(out, 64, 64) if staged else out, rows, columns, x.shape[1],
        min(launch["num_stages"], (SHARED_BYTES - held) // stage), launch["group"], staged,
        num_warps=4, enable_fp_fusion=False, launch_pdl=launch["overlap"],
    )  # fmt: skip
