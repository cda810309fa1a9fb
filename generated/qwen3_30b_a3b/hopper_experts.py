# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised grouped GEMM for Hopper: sorted rows [R, K] by the weight [E, N, K] of their expert, K as a tree.

A program keeps the rows of one tile in shared memory and walks all columns: one producer warp streams the weight with
the tensor memory accelerator, two warpgroups multiply, 64 rows each, so that one adds nodes of the tree while the other
multiplies; a half without rows is not multiplied. A leaf is one chain of wgmma instructions by ascending k from zero; a
node is `left + right` in fp32.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .expert_tiles import tiles
from .launcher import require

ROWS = 128
COLUMNS = 64
SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _copy(rows, weight, table, count, upper, lower, w_tiles, rows_full, rows_empty, full, empty, N: gl.constexpr,
          CHUNKS: gl.constexpr, CHUNK: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    slot = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        expert = gl.load(table + tile * 3)
        first = gl.load(table + tile * 3 + 1)
        if expert >= 0:
            for column in range(0, N, COLUMNS):
                for chunk in gl.static_range(CHUNKS):
                    if column == 0:
                        mbarrier.wait(rows_empty.index(chunk), turn ^ 1)
                        ready = rows_full.index(chunk)
                        mbarrier.expect(ready, 128 * CHUNK * 2)
                        tma.async_copy_global_to_shared(rows, [first, chunk * CHUNK], ready, upper.index(chunk))
                        tma.async_copy_global_to_shared(rows, [first + 64, chunk * CHUNK], ready, lower.index(chunk))
                    mbarrier.wait(empty.index(slot), phase ^ 1)
                    mbarrier.expect(full.index(slot), COLUMNS * CHUNK * 2)
                    tma.async_copy_global_to_shared(
                        weight, [expert * N + column, chunk * CHUNK], full.index(slot), w_tiles.index(slot)
                    )
                    slot, phase = _next(slot, phase, STAGES)
            turn ^= 1


@gluon.jit
def _column(target, live, first, last, turn, slot, phase, tile_rows, four, w_tiles, rows_full, rows_empty, full, empty,
            LEAVES: gl.constexpr, CHUNKS: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, KEEP: gl.constexpr,
            layout: gl.constexpr):  # fmt: skip
    """One tile of columns. `first`, `last`: of its unit; the rows have just come, or are read for the last time.

    KEEP: the left half of eight leaves waits in shared memory; otherwise in the result itself.
    """
    steps: gl.constexpr = CHUNKS // LEAVES
    for leaf in gl.static_range(LEAVES):
        sums = warpgroup_mma_init(gl.zeros([64, COLUMNS], gl.float32, layout))
        read = slot
        for step in gl.static_range(steps):
            if first:
                mbarrier.wait(rows_full.index(leaf * steps + step), turn)
            mbarrier.wait(full.index(slot), phase)
            rows, columns = tile_rows.index(leaf * steps + step), w_tiles.index(slot).permute((1, 0))
            sums = warpgroup_mma(rows, columns, sums, use_acc=step > 0, is_async=True)
            slot, phase = _next(slot, phase, STAGES)
        sums = warpgroup_mma_wait(0, deps=(sums,))
        for step in gl.static_range(steps):
            mbarrier.arrive(empty.index(read))
            mbarrier.arrive(rows_empty.index(leaf * steps + step), pred=last)
            read, _ = _next(read, phase, STAGES)
        if leaf % 2 == 1:
            sums = one + sums  # noqa: F821
        if leaf % 4 == 3:
            sums = two + sums  # noqa: F821
        if leaf == 7:
            sums = (four.load(layout) if KEEP else gl.load(target, mask=live[:, None])) + sums
        if leaf % 2 == 0:
            one = sums  # noqa: F841
        elif leaf % 4 == 1:
            two = sums  # noqa: F841
        elif leaf + 1 < LEAVES:
            if KEEP:
                four.store(sums)
            else:
                gl.store(target, sums, mask=live[:, None])
    gl.store(target, sums, mask=live[:, None])
    return slot, phase


@gluon.jit
def _multiply(out, order, table, count, tile_rows, four, w_tiles, rows_full, rows_empty, full, empty,
              HALF: gl.constexpr, N: gl.constexpr, LEAVES: gl.constexpr, CHUNKS: gl.constexpr, COLUMNS: gl.constexpr,
              STAGES: gl.constexpr, KEEP: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    slot = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        expert = gl.load(table + tile * 3)
        start = gl.load(table + tile * 3 + 1) + HALF * 64
        end = gl.load(table + tile * 3 + 2)
        if expert >= 0:
            if start < end:
                row = start + gl.arange(0, 64, gl.SliceLayout(1, layout))
                live = row < end
                place = gl.load(order + row, mask=live, other=0).to(gl.int64) * N
                for column in range(0, N, COLUMNS):
                    target = (out + column + place)[:, None] + gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))[None, :]
                    slot, phase = _column(
                        target, live, column == 0, column + COLUMNS == N, turn, slot, phase, tile_rows, four, w_tiles,
                        rows_full, rows_empty, full, empty, LEAVES, CHUNKS, COLUMNS, STAGES, KEEP, layout,
                    )  # fmt: skip
            else:
                for _ in range(N // COLUMNS * CHUNKS):
                    mbarrier.wait(full.index(slot), phase)
                    mbarrier.arrive(empty.index(slot))
                    slot, phase = _next(slot, phase, STAGES)
                for chunk in gl.static_range(CHUNKS):
                    mbarrier.arrive(rows_empty.index(chunk))
            turn ^= 1


@gluon.jit(do_not_specialize=["count"])
def _hopper_experts_kernel(rows, weight, order, table, out, count, N: gl.constexpr, LEAVES: gl.constexpr,
                           CHUNKS: gl.constexpr, CHUNK: gl.constexpr, COLUMNS: gl.constexpr,
                           STAGES: gl.constexpr, KEEP: gl.constexpr):  # fmt: skip
    upper = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout)
    lower = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout)
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, COLUMNS, CHUNK], weight.layout)
    four_layout: gl.constexpr = gl.NVMMASharedLayout(128, 32, 2)
    four_rows: gl.constexpr = 64 if KEEP else 8
    four_upper = gl.allocate_shared_memory(gl.float32, [four_rows, COLUMNS], four_layout)
    four_lower = gl.allocate_shared_memory(gl.float32, [four_rows, COLUMNS], four_layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [CHUNKS, 1], mbarrier.MBarrierLayout())
    rows_empty = gl.allocate_shared_memory(gl.int64, [CHUNKS, 1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for chunk in gl.static_range(CHUNKS):
        mbarrier.init(rows_full.index(chunk), count=1)
        mbarrier.init(rows_empty.index(chunk), count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    gl.warp_specialize(
        [
            (_multiply, (out, order, table, count, upper, four_upper, w_tiles, rows_full, rows_empty, full, empty,
                         0, N, LEAVES, CHUNKS, COLUMNS, STAGES, KEEP)),
            (_multiply, (out, order, table, count, lower, four_lower, w_tiles, rows_full, rows_empty, full, empty,
                         1, N, LEAVES, CHUNKS, COLUMNS, STAGES, KEEP)),
            (_copy, (rows, weight, table, count, upper, lower, w_tiles, rows_full, rows_empty, full, empty,
                     N, CHUNKS, CHUNK, COLUMNS, STAGES)),
        ],
        [4, 1],
        [232, 24],
    )  # fmt: skip


def _describe(matrix: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout(columns * 2, 16, 2)
    return TensorDescriptor(matrix, list(matrix.shape), list(matrix.stride()), [rows, columns], layout)


def hopper_experts(
    rows: torch.Tensor,
    weight: torch.Tensor,
    order: torch.Tensor,
    offsets: torch.Tensor,
    out: torch.Tensor,
    leaves: int,
) -> None:
    """out[order[r]] = the tree over `leaves` (1, 2, 4, 8) of row r times the transposed weight of its expert; fp32.

    rows: [R, K] bf16, sorted by expert; weight: [E, N, K] bf16; contiguous, aligned to 16 bytes; K at most 768, its
    leaves multiples of 32; N a multiple of 64; order: int32 [R]; offsets: int32 [E + 1]; out: fp32 [R, N]. Raises
    ValueError for other sizes.
    """
    experts, columns, width = weight.shape
    leaf = width // leaves
    require(
        width <= 768 and leaf % 32 == 0 and columns % COLUMNS == 0,
        f"rows of {width} in leaves of {leaf} by {columns} columns do not fit the resident schedule",
    )
    chunk = 64 if leaf % 64 == 0 else 32
    table = tiles(offsets, rows.shape[0], ROWS)
    keep = leaves == 8 and width <= 512
    held = ROWS * width * 2 + ROWS * COLUMNS * 4 * keep
    stages = min(16, (SHARED_BYTES - held) // (COLUMNS * chunk * 2))
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _hopper_experts_kernel[(min(table.shape[0], processors),)](
        _describe(rows, 64, chunk), _describe(weight.view(experts * columns, width), COLUMNS, chunk), order, table, out,
        table.shape[0], columns, leaves, width // chunk, chunk, COLUMNS, stages, keep,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
