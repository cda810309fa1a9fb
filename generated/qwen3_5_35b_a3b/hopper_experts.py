# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised grouped GEMM for Hopper: sorted rows [R, K] by the weight [E, N, K] of their expert, K as a tree.

A program keeps the rows of one tile in shared memory and walks all columns: one producer warp streams the weight with
the tensor memory accelerator, two warpgroups multiply 64 rows by 64 columns each: the left and the right columns of
64 rows or, of experts with fewer rows, the upper and lower rows of a tall tile, a half without rows left out. A
leaf is one chain of wgmma instructions by ascending k from zero; a node is `left + right` in fp32.
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

COLUMNS = 64
# 16 bytes of a row in a thread, where the product leaves 8: two lanes of a row exchange their columns.
WIDE = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0], [0, 16], [0, 32]],
        [[0, 8], [0, 4], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, COLUMNS],
    )
)
SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _copy(rows, weight, table, count, upper, lower, w_tiles, rows_full, rows_empty, full, empty, N: gl.constexpr,
          CHUNKS: gl.constexpr, CHUNK: gl.constexpr, TALL: gl.constexpr, STAGES: gl.constexpr,
          LOT: gl.constexpr):  # fmt: skip
    width: gl.constexpr = weight.block_shape[0]
    slot = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        expert = gl.load(table + tile * 3)
        first = gl.load(table + tile * 3 + 1)
        if expert >= 0:
            for column in range(0, N, width):
                for chunk in gl.static_range(CHUNKS):
                    if column == 0:
                        if chunk == 0:
                            mbarrier.wait(rows_empty, turn ^ 1)
                        ready = rows_full.index(chunk)
                        mbarrier.expect(ready, (2 if TALL else 1) * 64 * CHUNK * 2)
                        tma.async_copy_global_to_shared(rows, [first, chunk * CHUNK], ready, upper.index(chunk))
                        if TALL:
                            tma.async_copy_global_to_shared(
                                rows, [first + 64, chunk * CHUNK], ready, lower.index(chunk)
                            )  # fmt: skip
                    if chunk % LOT == 0:
                        mbarrier.wait(empty.index(slot), phase ^ 1)
                        mbarrier.expect(full.index(slot), LOT * width * CHUNK * 2)
                    tma.async_copy_global_to_shared(
                        weight, [expert * N + column, chunk * CHUNK], full.index(slot),
                        w_tiles.index(slot * LOT + chunk % LOT),
                    )  # fmt: skip
                    if chunk % LOT == LOT - 1:
                        slot, phase = _next(slot, phase, STAGES)
            turn ^= 1


@gluon.jit
def _settle(out, node, never):
    """A store that never happens, but whose value is needed here: ptxas would put off every addition to the last leaf
    and run out of registers for the leaves."""
    if never:
        place = out + gl.arange(0, node.shape[0], gl.SliceLayout(1, node.type.layout))[:, None]
        gl.store(place + gl.arange(0, node.shape[1], gl.SliceLayout(0, node.type.layout))[None, :], node)


@gluon.jit
def _column(out, never, tile_rows, w_tiles, rows_full, full, empty, turn, slot, phase, first, LEFT: gl.constexpr,
            LEAVES: gl.constexpr, CHUNKS: gl.constexpr, COLUMNS: gl.constexpr, STAGES: gl.constexpr, LOT: gl.constexpr,
            layout: gl.constexpr):  # fmt: skip
    """The root of one tile of columns: while a leaf is multiplied, the leaf before it joins the tree.

    `first`: of its rows, which may be on their way still.
    """
    steps: gl.constexpr = CHUNKS // LEAVES
    done = slot
    for leaf in gl.static_range(LEAVES + 1):
        if leaf < LEAVES:
            sums = warpgroup_mma_init(gl.zeros([64, COLUMNS], gl.float32, layout))
            for step in gl.static_range(steps):
                if first:
                    mbarrier.wait(rows_full.index(leaf * steps + step), turn)
                if (leaf * steps + step) % LOT == 0:
                    mbarrier.wait(full.index(slot), phase)
                columns = w_tiles.index(slot * LOT + (leaf * steps + step) % LOT).slice(LEFT, COLUMNS).permute((1, 0))
                rows = tile_rows.index(leaf * steps + step)
                sums = warpgroup_mma(rows, columns, sums, use_acc=step > 0, is_async=True)
                if (leaf * steps + step) % LOT == LOT - 1:
                    slot, phase = _next(slot, phase, STAGES)
        if leaf > 0:
            node = warpgroup_mma_wait(steps if leaf < LEAVES else 0, deps=(before,))  # noqa: F821
            if leaf % 2 == 0:
                node = one + node  # noqa: F821
            if leaf % 4 == 0:
                node = two + node  # noqa: F821
            if leaf == 8:
                node = four + node  # noqa: F821
            if leaf % 2 == 1:
                one = node  # noqa: F841
            elif leaf % 4 == 2:
                two = node  # noqa: F841
            else:
                four = node  # noqa: F841
            if leaf % 2 == 0 and leaf < LEAVES:
                _settle(out, node, never)
        if leaf > 0:
            for step in gl.static_range(steps):
                if ((leaf - 1) * steps + step) % LOT == LOT - 1:
                    mbarrier.arrive(empty.index(done))
                    done, _ = _next(done, phase, STAGES)
        if leaf < LEAVES:
            before = sums  # noqa: F841
    return node, slot, phase


@gluon.jit
def _multiply(out, order, table, count, tile_rows, w_tiles, rows_full, rows_empty, full, empty, HALF: gl.constexpr,
              N: gl.constexpr, LEAVES: gl.constexpr, CHUNKS: gl.constexpr, COLUMNS: gl.constexpr, TALL: gl.constexpr,
              STAGES: gl.constexpr, LOT: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    width: gl.constexpr = w_tiles.shape[1]
    left: gl.constexpr = 0 if TALL else HALF * COLUMNS
    slot = 0
    phase = 0
    turn = 0
    for tile in range(gl.program_id(0), count, gl.num_programs(0)):
        expert = gl.load(table + tile * 3)
        start = gl.load(table + tile * 3 + 1) + (HALF * 64 if TALL else 0)
        end = gl.load(table + tile * 3 + 2)
        if expert >= 0:
            if start < end:
                row = start + gl.arange(0, 64, gl.SliceLayout(1, WIDE))
                live = row < end
                place = gl.load(order + row, mask=live, other=0).to(gl.int64) * N + left
                for column in range(0, N, width):
                    root, slot, phase = _column(
                        out, end < 0, tile_rows, w_tiles, rows_full, full, empty, turn, slot, phase, column == 0,
                        left, LEAVES, CHUNKS, COLUMNS, STAGES, LOT, layout,
                    )  # fmt: skip
                    target = (out + column + place)[:, None] + gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))[None, :]
                    gl.store(target, gl.convert_layout(root, WIDE), mask=live[:, None])
            else:
                for chunk in gl.static_range(CHUNKS):
                    mbarrier.wait(rows_full.index(chunk), turn)
                for _ in range(N // width * (CHUNKS // LOT)):
                    mbarrier.wait(full.index(slot), phase)
                    mbarrier.arrive(empty.index(slot))
                    slot, phase = _next(slot, phase, STAGES)
            mbarrier.arrive(rows_empty)
            turn ^= 1


@gluon.jit(do_not_specialize=["count"])
def _hopper_experts_kernel(rows, weight, order, table, out, count, N: gl.constexpr, LEAVES: gl.constexpr,
                           CHUNKS: gl.constexpr, CHUNK: gl.constexpr, COLUMNS: gl.constexpr, TALL: gl.constexpr,
                           STAGES: gl.constexpr, LOT: gl.constexpr):  # fmt: skip
    upper = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout)
    lower = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout) if TALL else upper
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * LOT, weight.block_shape[0], CHUNK], weight.layout)
    rows_full = gl.allocate_shared_memory(gl.int64, [CHUNKS, 1], mbarrier.MBarrierLayout())
    rows_empty = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for chunk in gl.static_range(CHUNKS):
        mbarrier.init(rows_full.index(chunk), count=1)
    mbarrier.init(rows_empty, count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    gl.warp_specialize(
        [
            (_multiply, (out, order, table, count, upper, w_tiles, rows_full, rows_empty, full, empty,
                         0, N, LEAVES, CHUNKS, COLUMNS, TALL, STAGES, LOT)),
            (_multiply, (out, order, table, count, lower, w_tiles, rows_full, rows_empty, full, empty,
                         1, N, LEAVES, CHUNKS, COLUMNS, TALL, STAGES, LOT)),
            (_copy, (rows, weight, table, count, upper, lower, w_tiles, rows_full, rows_empty, full, empty,
                     N, CHUNKS, CHUNK, TALL, STAGES, LOT)),
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

    rows: [R, K] bf16, sorted by expert; weight: [E, N, K] bf16; contiguous, aligned to 16 bytes; K at most 1024, its
    leaves multiples of 32; N a multiple of 128; order: int32 [R]; offsets: int32 [E + 1]; out: fp32 [R, N]. Raises
    ValueError for other sizes.
    """
    experts, columns, width = weight.shape
    leaf = width // leaves
    require(
        width <= 1024 and leaf % 32 == 0 and columns % (2 * COLUMNS) == 0,
        f"rows of {width} in leaves of {leaf} by {columns} columns do not fit the resident schedule",
    )
    chunk = 64 if leaf % 64 == 0 else 32
    chunks = width // chunk
    lot = next(lot for lot in ((2, 1) if chunk == 64 else (3, 4, 2, 1)) if chunks % lot == 0)
    tall = width <= 512 and rows.shape[0] <= 96 * experts
    height, wide = (128, COLUMNS) if tall else (64, 2 * COLUMNS)
    table = tiles(offsets, rows.shape[0], height)
    stages = min(16, (SHARED_BYTES - height * width * 2) // (lot * wide * chunk * 2))
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _hopper_experts_kernel[(min(table.shape[0], processors),)](
        _describe(rows, 64, chunk), _describe(weight.view(experts * columns, width), wide, chunk), order, table, out,
        table.shape[0], columns, leaves, chunks, chunk, COLUMNS, tall, stages, lot,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
