# SPDX-License-Identifier: Apache-2.0
"""Gradients of the keys and values of causal attention: tiles of keys walk the query blocks at and above them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .hopper_assignment import aligned_start, owner
from .hopper_dkdv_rows import both_rows, one_rows
from .hopper_rows import advance


@gluon.jit
def _copy_queries(q, grad, rows, k, v, ring, k_tile, v_tile, held, span, q_step, k_step, v_step, row_start,
                  KEYS: gl.constexpr, HEADS: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    start, first, first_head, edge, blocks = span
    q_tiles, grad_tiles, row_tiles, full, empty = ring
    mbarrier.expect(held, KEYS * HEAD_DIM * 4)
    tma.async_copy_global_to_shared(k, [start + first + k_step[0], k_step[1]], held, k_tile)
    tma.async_copy_global_to_shared(v, [start + first + v_step[0], v_step[1]], held, v_tile)
    slot = 0
    phase = 0
    for head in range(first_head, first_head + HEADS):
        for block in range(edge, edge + blocks):
            row = start + block * 64
            ready = full.index(slot)
            mbarrier.wait(empty.index(slot), phase ^ 1)
            mbarrier.expect(ready, 64 * HEAD_DIM * 4 + 64 * 8)
            tma.async_copy_global_to_shared(q, [row + head * q_step[0], head * q_step[1]], ready, q_tiles.index(slot))
            tma.async_copy_global_to_shared(grad, [row, head * HEAD_DIM], ready, grad_tiles.index(slot))
            tma.async_copy_global_to_shared(rows, [head * 2, row_start + block * 64], ready, row_tiles.index(slot))
            slot, phase = advance(slot, phase, STAGES)


@gluon.jit(do_not_specialize=["sequences", "pitch", "q_row", "q_column", "k_row", "k_column", "v_row", "v_column"])
def attention_dkdv_kernel(q, grad, rows, k, v, dk, dv, cu_seqlens, sequences, pitch, q_row, q_column, k_row,
                          k_column, v_row, v_column, KEY_HEADS: gl.constexpr, GROUP: gl.constexpr,
                          SHARES: gl.constexpr, SEQUENCES: gl.constexpr, SCALE: gl.constexpr,
                          LOG2_SCALE: gl.constexpr, HEAD_DIM: gl.constexpr, KEYS: gl.constexpr,
                          STAGES: gl.constexpr):  # fmt: skip
    """dk and dv [SHARES, pitch, KEY_HEADS, HEAD_DIM] of 128 keys of a key head and a share of its query heads.

    Of 64 keys where one warpgroup can hold only one of the two: then the warpgroup of dv takes the probabilities, and
    passes them to that of dk.
    """
    heads: gl.constexpr = GROUP // SHARES
    kv_head = gl.program_id(0) % KEY_HEADS
    share = gl.program_id(0) // KEY_HEADS % SHARES
    slot = gl.program_id(0) // (KEY_HEADS * SHARES)  # early keys, which most rows see, of every head first
    sequence, start, length, first = owner(cu_seqlens, sequences, slot, SEQUENCES, KEYS)
    if first < length:
        edge = first // 64
        blocks = (length + 63) // 64 - edge
        k_tile = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], k.layout)
        v_tile = gl.allocate_shared_memory(gl.bfloat16, [KEYS, HEAD_DIM], v.layout)
        q_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, HEAD_DIM], q.layout)
        grad_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, HEAD_DIM], grad.layout)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        held = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(held, count=1)
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=2)
        row_tiles = gl.allocate_shared_memory(gl.float32, [STAGES, 2, 64], rows.layout)
        ring = (q_tiles, grad_tiles, row_tiles, full, empty)
        span = (start, first, kv_head * GROUP + share * heads, edge, blocks)
        place = share.to(gl.int64) * pitch * KEY_HEADS + kv_head
        row_start = aligned_start(start, sequence)
        k_step = (kv_head * k_row, kv_head * k_column)
        v_step = (kv_head * v_row, kv_head * v_column)
        if KEYS == 128:
            gl.warp_specialize(
                [
                    (both_rows, (dk, dv, ring, k_tile.slice(0, 64), v_tile.slice(0, 64), held, span, length, place, 0,
                                 KEY_HEADS, heads, SCALE, LOG2_SCALE, HEAD_DIM, STAGES)),
                    (both_rows, (dk, dv, ring, k_tile.slice(64, 64), v_tile.slice(64, 64), held, span, length, place, 1,
                                 KEY_HEADS, heads, SCALE, LOG2_SCALE, HEAD_DIM, STAGES)),
                    (_copy_queries, (q, grad, rows, k, v, ring, k_tile, v_tile, held, span, (q_row, q_column), k_step,
                                     v_step, row_start, KEYS, heads, HEAD_DIM, STAGES)),
                ],
                [4, 1],
                [240, 24],
            )  # fmt: skip
        else:
            p_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, 64], gl.NVMMASharedLayout(128, 32, 2))
            p_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
            p_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
            for half in gl.static_range(2):
                mbarrier.init(p_full.index(half), count=1)
                mbarrier.init(p_empty.index(half), count=1)
            passed = (p_tiles, p_full, p_empty)
            gl.warp_specialize(
                [
                    (one_rows, (dv, ring, passed, k_tile, held, span, length, place, KEY_HEADS, heads, SCALE,
                                LOG2_SCALE, HEAD_DIM, STAGES, False)),
                    (one_rows, (dk, ring, passed, v_tile, held, span, length, place, KEY_HEADS, heads, SCALE,
                                LOG2_SCALE, HEAD_DIM, STAGES, True)),
                    (_copy_queries, (q, grad, rows, k, v, ring, k_tile, v_tile, held, span, (q_row, q_column), k_step,
                                     v_step, row_start, KEYS, heads, HEAD_DIM, STAGES)),
                ],
                [4, 1],
                [240, 24],
            )  # fmt: skip
