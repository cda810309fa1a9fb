# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised grouped GEMM for Hopper: sorted rows [R, K] by the weight [E, N, K] of their expert, K as a tree.

A program keeps the rows of one tile in shared memory and walks all columns: one producer warp streams the weight with
the tensor memory accelerator, two warpgroups multiply 64 rows by 64 columns each: the left and the right columns of
64 rows or, of experts with fewer rows, the upper and lower rows of a tall tile, a half without rows left out.
"""

from math import gcd

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .expert_tiles import tiles
from .hopper_expert_tree import tree_of_columns
from .hopper_tiles import SHARED_BYTES, describe, next_slot
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


@gluon.jit
def _part(index, live, STEPS: gl.constexpr):
    """(tile, first, end): this program's `index`th run of columns. Whole tiles in turn, then the tiles that are too few
    for all programs in equal shares, each a run of one tile or of two."""
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    waves = live // programs
    shared = live % programs * STEPS
    whole = index < waves
    begin = program * shared // programs
    end = (program + 1) * shared // programs
    tile = gl.where(whole, index * programs + program, begin // STEPS + index - waves)
    first = gl.where(whole, 0, gl.maximum(begin - tile * STEPS, 0))
    end = gl.where(whole, STEPS, gl.minimum(end - tile * STEPS, STEPS))
    return gl.where(whole, tile, tile + waves * programs), first, end


@gluon.jit
def _copy(rows, weight, table, live, upper, lower, w_tiles, rows_full, rows_empty, full, empty, N: gl.constexpr,
          CHUNKS: gl.constexpr, CHUNK: gl.constexpr, TALL: gl.constexpr, STAGES: gl.constexpr,
          LOT: gl.constexpr):  # fmt: skip
    width: gl.constexpr = weight.block_shape[0]
    slot = 0
    phase = 0
    turn = 0
    gdc_wait()
    count = gl.load(live)
    for index in range(count // gl.num_programs(0) + 2):
        tile, begin, end = _part(index, count, N // width)
        if begin < end:
            expert = gl.load(table + tile * 3)
            row = gl.load(table + tile * 3 + 1)
            for column in range(begin, end):
                for chunk in gl.static_range(CHUNKS):
                    if column == begin:
                        ready = rows_full.index(chunk)
                        mbarrier.wait(rows_empty.index(chunk), turn ^ 1)
                        mbarrier.expect(ready, (2 if TALL else 1) * 64 * CHUNK * 2)
                        tma.async_copy_global_to_shared(rows, [row, chunk * CHUNK], ready, upper.index(chunk))
                        if TALL:
                            tma.async_copy_global_to_shared(
                                rows, [row + 64, chunk * CHUNK], ready, lower.index(chunk)
                            )  # fmt: skip
                    if chunk % LOT == 0:
                        mbarrier.wait(empty.index(slot), phase ^ 1)
                        mbarrier.expect(full.index(slot), LOT * width * CHUNK * 2)
                    tma.async_copy_global_to_shared(
                        weight, [expert * N + column * width, chunk * CHUNK], full.index(slot),
                        w_tiles.index(slot * LOT + chunk % LOT),
                    )  # fmt: skip
                    if chunk % LOT == LOT - 1:
                        slot, phase = next_slot(slot, phase, STAGES)
            turn ^= 1


@gluon.jit
def _multiply(out, order, table, live, tile_rows, w_tiles, rows_full, rows_empty, full, empty, HALF: gl.constexpr,
              N: gl.constexpr, LEAVES: gl.constexpr, PIECES: gl.constexpr, PIECE: gl.constexpr, COLUMNS: gl.constexpr,
              TALL: gl.constexpr, STAGES: gl.constexpr, LOT: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    width: gl.constexpr = w_tiles.shape[1]
    chunks: gl.constexpr = tile_rows.shape[0]
    left: gl.constexpr = 0 if TALL else HALF * COLUMNS
    slot = 0
    phase = 0
    turn = 0
    gdc_wait()
    count = gl.load(live)
    for index in range(count // gl.num_programs(0) + 2):
        tile, begin, end = _part(index, count, N // width)
        if begin < end:
            start = gl.load(table + tile * 3 + 1) + (HALF * 64 if TALL else 0)
            stop = gl.load(table + tile * 3 + 2)
            if not TALL or start < stop:
                row = start + gl.arange(0, 64, gl.SliceLayout(1, WIDE))
                mine = row < stop
                place = gl.load(order + row, mask=mine, other=0).to(gl.int64) * N + left
                for column in range(begin, end):
                    root, slot, phase = tree_of_columns(
                        out, stop < 0, tile_rows, w_tiles, rows_full, rows_empty, full, empty, turn, slot, phase,
                        column == begin, column == end - 1, left, LEAVES, PIECES, PIECE, COLUMNS, STAGES, LOT, layout,
                    )  # fmt: skip
                    target = (out + column * width + place)[:, None]
                    target += gl.arange(0, COLUMNS, gl.SliceLayout(0, WIDE))[None, :]
                    gl.store(target, gl.convert_layout(root, WIDE), mask=mine[:, None], cache_modifier=".cs")
            else:
                for chunk in gl.static_range(chunks):
                    mbarrier.wait(rows_full.index(chunk), turn)
                    mbarrier.arrive(rows_empty.index(chunk))
                for _ in range((end - begin) * (chunks // LOT)):
                    mbarrier.wait(full.index(slot), phase)
                    mbarrier.arrive(empty.index(slot))
                    slot, phase = next_slot(slot, phase, STAGES)
            turn ^= 1


@gluon.jit
def _hopper_experts_kernel(rows, weight, order, table, live, out, N: gl.constexpr, LEAVES: gl.constexpr,
                           CHUNKS: gl.constexpr, CHUNK: gl.constexpr, PIECE: gl.constexpr, COLUMNS: gl.constexpr,
                           TALL: gl.constexpr, STAGES: gl.constexpr, LOT: gl.constexpr):  # fmt: skip
    pieces: gl.constexpr = CHUNKS * CHUNK // (LEAVES * PIECE)
    upper = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout)
    lower = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, 64, CHUNK], rows.layout) if TALL else upper
    w_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * LOT, weight.block_shape[0], CHUNK], weight.layout)
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
    gdc_launch_dependents()
    gl.warp_specialize(
        [
            (_multiply, (out, order, table, live, upper, w_tiles, rows_full, rows_empty, full, empty,
                         0, N, LEAVES, pieces, PIECE, COLUMNS, TALL, STAGES, LOT)),
            (_multiply, (out, order, table, live, lower, w_tiles, rows_full, rows_empty, full, empty,
                         1, N, LEAVES, pieces, PIECE, COLUMNS, TALL, STAGES, LOT)),
            (_copy, (rows, weight, table, live, upper, lower, w_tiles, rows_full, rows_empty, full, empty,
                     N, CHUNKS, CHUNK, TALL, STAGES, LOT)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


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
    leaves multiples of 32 of which two lie beside the rows in shared memory; N a multiple of 128; order: int32 [R];
    offsets: int32 [E + 1]; out: fp32 [R, N]. Raises ValueError for other sizes.
    """
    experts, columns, width = weight.shape
    leaf = width // leaves
    chunk = gcd(width, 64)
    lot = 1 if width // chunk % 2 else 2
    tall = width <= 512 and rows.shape[0] <= 96 * experts
    height, wide = (128, COLUMNS) if tall else (64, 2 * COLUMNS)
    stages = min(16, (SHARED_BYTES - height * width * 2) // (lot * wide * chunk * 2))
    held = min(2, leaves) * leaf / (lot * chunk)  # lots of the leaf that is multiplied and of the one before
    require(
        width <= 1024 and leaf % 32 == 0 and columns % (2 * COLUMNS) == 0 and held + 1 <= stages,
        f"rows of {width} in leaves of {leaf} by {columns} columns do not fit the resident schedule",
    )
    table, live = tiles(offsets, rows.shape[0], height)
    processors = torch.cuda.get_device_properties(rows.device).multi_processor_count
    _hopper_experts_kernel[(processors,)](
        describe(rows, 64, chunk), describe(weight.view(experts * columns, width), wide, chunk), order, table, live,
        out, columns, leaves, width // chunk, chunk, gcd(leaf, chunk), COLUMNS, tall, stages, lot,
        num_warps=4, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
