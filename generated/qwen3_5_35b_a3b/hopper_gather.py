# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised grouped GEMM for Hopper whose rows are gathered: tokens [T, K] by the weight [E, N, K] of an expert.

One warpgroup copies: the tokens of a tile row by row, the weight with the tensor memory accelerator. Two warpgroups
multiply 64 rows each, one chain of wgmma instructions by ascending k; a half without rows is not multiplied.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .expert_tiles import tiles

ROWS = 128
CHUNK = 64
STAGES = 4
COPIERS = 128  # threads that copy tokens; each signals the arrival of its own


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _before(slot, STAGES: gl.constexpr):
    return gl.where(slot == 0, STAGES, slot) - 1


@gluon.jit
def _copy(x, weight, order, table, live, top_k, upper, lower, w_tiles, full, empty, N: gl.constexpr, K: gl.constexpr,
          COLUMNS: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    across: gl.constexpr = (N + COLUMNS - 1) // COLUMNS
    feature = gl.arange(0, CHUNK, gl.SliceLayout(0, layout))
    slot = 0
    phase = 0
    gdc_wait()
    for unit in range(gl.program_id(0), gl.load(live) * across, gl.num_programs(0)):
        tile = table + unit // across * 3
        expert = gl.load(tile)
        first_row = gl.load(tile + 1)
        row = first_row + gl.arange(0, 64, gl.SliceLayout(1, layout))
        end = gl.load(tile + 2)
        first = gl.load(order + row, mask=row < end, other=0) // top_k
        second = gl.load(order + row + 64, mask=row + 64 < end, other=0) // top_k
        a = x + first.to(gl.int64)[:, None] * K + feature[None, :]
        b = x + second.to(gl.int64)[:, None] * K + feature[None, :]
        half = first_row + 64 < end
        weight_row = expert * N + unit % across * COLUMNS
        for k in range(0, K, CHUNK):
            mbarrier.wait(empty.index(slot), phase ^ 1)
            ready = full.index(slot)
            mbarrier.expect(ready, COLUMNS * CHUNK * 2)
            tma.async_copy_global_to_shared(weight, [weight_row, k], ready, w_tiles.index(slot))
            async_copy.async_copy_global_to_shared(upper.index(slot), a + k)
            if half:
                async_copy.async_copy_global_to_shared(lower.index(slot), b + k)
            async_copy.mbarrier_arrive(ready, increment_count=False)
            slot, phase = _next(slot, phase, STAGES)
    async_copy.wait_group(0)


@gluon.jit
def _multiply(out, table, live, x_tiles, w_tiles, full, empty, HALF: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
              COLUMNS: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr, WIDE: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    across: gl.constexpr = (N + COLUMNS - 1) // COLUMNS
    slot = 0
    phase = 0
    gdc_wait()
    for unit in range(gl.program_id(0), gl.load(live) * across, gl.num_programs(0)):
        tile = table + unit // across * 3
        first = gl.load(tile + 1) + HALF * 64
        end = gl.load(tile + 2)
        if first < end:
            sums = warpgroup_mma_init(gl.zeros([64, COLUMNS], gl.float32, layout))
            for k in range(K // CHUNK):
                mbarrier.wait(full.index(slot), phase)
                fence_async_shared()
                sums = warpgroup_mma(x_tiles.index(slot), w_tiles.index(slot).permute((1, 0)), sums, is_async=True)
                sums = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(sums,)))
                mbarrier.arrive(empty.index(_before(slot, STAGES)), pred=k > 0)
                slot, phase = _next(slot, phase, STAGES)
            sums = warpgroup_mma_wait(0, deps=(sums,))
            mbarrier.arrive(empty.index(_before(slot, STAGES)))
            row = first + gl.arange(0, 64, gl.SliceLayout(1, WIDE))
            column = unit % across * COLUMNS + gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))
            target = out + row.to(gl.int64)[:, None] * N + column[None, :]
            sums = gl.convert_layout(sums.to(gl.bfloat16), WIDE)
            gl.store(target, sums, mask=(row < end)[:, None] & (column < N)[None, :])
        else:
            for _ in range(K // CHUNK):
                mbarrier.wait(full.index(slot), phase)
                mbarrier.arrive(empty.index(slot))
                slot, phase = _next(slot, phase, STAGES)


@gluon.jit(do_not_specialize=["top_k"])
def _hopper_gather_kernel(x, weight, order, table, live, out, top_k, N: gl.constexpr, K: gl.constexpr,
                          COLUMNS: gl.constexpr, CHUNK: gl.constexpr, STAGES: gl.constexpr, COPIERS: gl.constexpr,
                          WIDE: gl.constexpr):  # fmt: skip
    x_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    upper = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, CHUNK], x_layout)
    lower = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, CHUNK], x_layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, COLUMNS, CHUNK], weight.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=COPIERS + 1)
        mbarrier.init(empty.index(slot), count=2)
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (out, table, live, upper, w_tiles, full, empty, 0, N, K, COLUMNS, CHUNK, STAGES, WIDE)),
            (_multiply, (out, table, live, lower, w_tiles, full, empty, 1, N, K, COLUMNS, CHUNK, STAGES, WIDE)),
            (_copy, (x, weight, order, table, live, top_k, upper, lower, w_tiles, full, empty,
                     N, K, COLUMNS, CHUNK, STAGES)),
        ],
        [4, 4],
        [208, 88],
    )  # fmt: skip


def _wide(columns: int) -> gl.DistributedLinearLayout:
    """16 bytes of a row in a thread, where a product leaves 4: four lanes of a row exchange their columns."""
    doubled = [[0, 1 << bit] for bit in range(5, columns.bit_length() - 1)]
    registers = [[0, 1], [0, 2], [0, 4], [8, 0], *doubled]
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, columns])


def hopper_gather(
    x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor
) -> None:
    """out[r] = token order[r] // k times the transposed weight of its expert, summed by ascending k, rounded once.

    x: [T, K] bf16, K a multiple of 64; weight: [E, N, K] bf16; contiguous, aligned to 16 bytes; order: int32 [R], k = R
    / T; offsets: int32 [E + 1]; out: bf16 [R, N].
    """
    experts, columns, width = weight.shape
    wide = 256 if columns > 128 else 128
    table, live = tiles(offsets, order.numel(), ROWS)
    units = table.shape[0] * -(-columns // wide)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    flat = weight.view(experts * columns, width)
    described = TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [wide, CHUNK], layout)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    _hopper_gather_kernel[(min(units, processors),)](
        x, described, order, table, live, out, order.numel() // x.shape[0], columns, width,
        wide, CHUNK, STAGES, COPIERS, _wide(wide), num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
