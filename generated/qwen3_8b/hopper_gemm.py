# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised persistent GEMM for Hopper: x [rows, K] times weight [N, K] transposed, K summed as a tree.

One producer warp copies tiles with the tensor memory accelerator; one or two warpgroups multiply, 64 rows each. They
wait for nothing but operands, so that one stores its rows while the other multiplies.
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
def _copy(x, weight, x_upper, x_lower, w_tiles, full, empty, rows, tiles, N: gl.constexpr, K: gl.constexpr,
          PARTS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
          GROUP: gl.constexpr):  # fmt: skip
    """Rows of a tile that `x` does not bring keep what was there: no row reads another's."""
    box: gl.constexpr = x.block_shape[0]
    slot = 0
    phase = 0
    for work in range(gl.program_id(0), tiles * PARTS, gl.num_programs(0)):
        row, column = corner(work % tiles, rows, N, BLOCK_M, BLOCK_N, GROUP)
        first = work // tiles * K
        for k in range(first, first + K, BLOCK_K):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            ready = full.index(slot)
            mbarrier.expect(ready, (BLOCK_M // 64 * box + BLOCK_N) * BLOCK_K * 2)
            tma.async_copy_global_to_shared(x, [row, k], ready, x_upper.index(slot).slice(0, box))
            if BLOCK_M == 128:
                tma.async_copy_global_to_shared(x, [row + 64, k], ready, x_lower.index(slot).slice(0, box))
            tma.async_copy_global_to_shared(weight, [column, k], ready, w_tiles.index(slot))
            slot, phase = next_slot(slot, phase, STAGES)


@gluon.jit
def _multiply(out, staging, kept, anywhere, x_tiles, w_tiles, full, empty, rows, tiles, HALF: gl.constexpr,
              N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, LEAVES: gl.constexpr, LEAF_DTYPE: gl.constexpr,
              BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
              STAGED: gl.constexpr, KEPT: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    steps: gl.constexpr = K // LEAVES // BLOCK_K
    slot = 0
    phase = 0
    for work in range(gl.program_id(0), tiles * PARTS, gl.num_programs(0)):
        row, column = corner(work % tiles, rows, N, BLOCK_M, BLOCK_N, GROUP)
        node, slot, phase = root(x_tiles, w_tiles, full, empty, slot, phase, kept, anywhere, rows < 0, LEAVES, steps,
                                 LEAF_DTYPE, STAGES, layout)  # fmt: skip
        if not KEPT:
            tma.store_wait(0)
        place = out if STAGED else out + (work // tiles).to(gl.int64) * rows * N
        store_tile(place, staging, node, row + HALF * 64, column, rows, N, STAGED)
    tma.store_wait(0)


@gluon.jit
def _half(BLOCK_N: gl.constexpr, STAGED: gl.constexpr, KEPT: gl.constexpr):
    """Shared memory of one warpgroup: the node it keeps, and the tile in which its output is staged, which overlap."""
    out_layout: gl.constexpr = gl.NVMMASharedLayout(min(128, 2 * BLOCK_N), 16, 2)
    if KEPT:
        kept = gl.allocate_shared_memory(gl.float32, [64, BLOCK_N], gl.SwizzledSharedLayout(8, 1, 4, [1, 0]))
        return kept, kept._reinterpret(gl.bfloat16, [64, BLOCK_N], out_layout)
    else:  # noqa: RET505
        staging = gl.allocate_shared_memory(gl.bfloat16, [64 if STAGED else 8, BLOCK_N], out_layout)
        return staging, staging


@gluon.jit(do_not_specialize=["rows"])
def _hopper_gemm_kernel(x, weight, out, anywhere, rows, N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr,
                        LEAVES: gl.constexpr, LEAF_DTYPE: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr,
                        STAGES: gl.constexpr, GROUP: gl.constexpr, STAGED: gl.constexpr,
                        KEPT: gl.constexpr):  # fmt: skip
    """x, weight: descriptors. out: a bfloat16 descriptor (STAGED), or the address of float32 [PARTS, rows, N].

    K and LEAVES are those of one part. KEPT: one node of a tile waits in shared memory. `anywhere`: an address.
    """
    x_upper = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK_N, BLOCK_K], weight.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    gdc_launch_dependents()
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=BLOCK_M // 64)
    tiles = (rows + BLOCK_M - 1) // BLOCK_M * ((N + BLOCK_N - 1) // BLOCK_N)
    kept_upper, upper = _half(BLOCK_N, STAGED, KEPT)
    gdc_wait()
    if BLOCK_M == 128:
        x_lower = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, BLOCK_K], x.layout)
        kept_lower, lower = _half(BLOCK_N, STAGED, KEPT)
        gl.warp_specialize(
            [
                (_multiply, (out, upper, kept_upper, anywhere, x_upper, w_tiles, full, empty, rows, tiles, 0, N, K,
                             PARTS, LEAVES, LEAF_DTYPE, BLOCK_M, BLOCK_N, STAGES, GROUP, STAGED, KEPT)),
                (_multiply, (out, lower, kept_lower, anywhere, x_lower, w_tiles, full, empty, rows, tiles, 1, N, K,
                             PARTS, LEAVES, LEAF_DTYPE, BLOCK_M, BLOCK_N, STAGES, GROUP, STAGED, KEPT)),
                (_copy, (x, weight, x_upper, x_lower, w_tiles, full, empty, rows, tiles, N, K, PARTS, BLOCK_M,
                         BLOCK_N, STAGES, GROUP)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_multiply, (out, upper, kept_upper, anywhere, x_upper, w_tiles, full, empty, rows, tiles, 0, N, K,
                             PARTS, LEAVES, LEAF_DTYPE, BLOCK_M, BLOCK_N, STAGES, GROUP, STAGED, KEPT)),
                (_copy, (x, weight, x_upper, x_upper, w_tiles, full, empty, rows, tiles, N, K, PARTS, BLOCK_M,
                         BLOCK_N, STAGES, GROUP)),
            ],
            [1],
            [24],
        )  # fmt: skip


def hopper_gemm(
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    *,
    leaves: int,
    launch: Mapping,
    leaf_dtype: gl.dtype = gl.float32,
) -> None:
    """out [parts, rows, N]: for each part of K, the tree over `leaves` (1, 2, 4, 8) of it, rounded once.

    x [rows, K] times weight [N, K] transposed, both contiguous bfloat16, aligned to 16 bytes, K a multiple of
    64 * leaves * parts. out is contiguous, bfloat16 [rows, N] or float32, N a multiple of 8. `launch` moves no bit:
    tiles are `block_m` (64, or else 128) rows by `block_n` outputs (at most 64 at 64 rows, 128 for several leaves), at
    most `num_stages` of them in flight; `group` row tiles share weights in L2.
    """
    rows, columns = out.shape[-2:]
    parts = out.numel() // (rows * columns)
    block_m = 64 if launch["block_m"] <= 64 else 128
    block_n = min(launch["block_n"], 64 if block_m == 64 else 256 if leaves == 1 else 128)
    staged, kept = out.dtype == torch.bfloat16, leaves == 8 and block_n == 128
    held = block_m * block_n * (4 if kept else 2 * staged)
    stage = (block_m + block_n) * BLOCK_K.value * 2
    stages = min(launch["num_stages"], (SHARED_BYTES - held) // stage)
    work = triton.cdiv(rows, block_m) * triton.cdiv(columns, block_n) * parts
    resident = 1 if block_m == 128 else min(2, SHARED_BYTES // (held + stages * stage))
    programs = min(work, resident * multiprocessors(x.device))
    _hopper_gemm_kernel[(programs,)](
        describe(x, min(64, max(16, triton.next_power_of_2(rows))), BLOCK_K.value),
        describe(weight, block_n, BLOCK_K.value),
        describe(out, 64, block_n) if staged else out, out, rows, columns, x.shape[1] // parts, parts, leaves,
        leaf_dtype, block_m, block_n, stages, launch["group"], staged, kept,
        num_warps=4, maxnreg=None if block_m == 128 else 128, enable_fp_fusion=False, launch_pdl=launch["overlap"],
    )  # fmt: skip
