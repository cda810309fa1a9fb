# SPDX-License-Identifier: Apache-2.0
"""Gradients of the keys and values of causal attention: tiles of keys walk the query blocks at and above them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_rows import advance, owner, probabilities, zero_past


@gluon.jit
def _copy_queries(q, grad, k, v, ring, k_tile, v_tile, held, span, q_step, k_step, v_step, KEYS: gl.constexpr,
                  GROUP: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    start, first, kv_head, edge, blocks = span
    q_tiles, grad_tiles, full, empty = ring
    mbarrier.expect(held, KEYS * HEAD_DIM * 4)
    tma.async_copy_global_to_shared(k, [start + first + k_step[0], k_step[1]], held, k_tile)
    tma.async_copy_global_to_shared(v, [start + first + v_step[0], v_step[1]], held, v_tile)
    slot = 0
    phase = 0
    for index in range(GROUP * blocks):
        head = kv_head * GROUP + index // blocks
        row = start + (edge + index % blocks) * 64
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(full.index(slot), 64 * HEAD_DIM * 4)
        tma.async_copy_global_to_shared(q, [row + head * q_step[0], head * q_step[1]], full.index(slot),
                                        q_tiles.index(slot))  # fmt: skip
        tma.async_copy_global_to_shared(grad, [row, head * HEAD_DIM], full.index(slot), grad_tiles.index(slot))
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def _key_rows(lse, delta, dk, dv, ring, passed, k_tile, v_tile, held, span, length, pitch, HALF: gl.constexpr,
              KEY_HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
              HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, WANT_K: gl.constexpr, WANT_V: gl.constexpr):  # fmt: skip
    """dk, dv or both of 64 keys; each warpgroup owns its keys, or one gradient of them."""
    start, first, kv_head, edge, blocks = span
    q_tiles, grad_tiles, full, empty = ring
    p_tiles, p_full, p_empty = passed
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sum_layout, 2)
    query_layout: gl.constexpr = gl.SliceLayout(0, layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    first += HALF * 64
    key = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    zeros = gl.zeros([64, 64], gl.float32, layout)
    if WANT_V:
        dv_sums = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    if WANT_K:
        dk_sums = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    slot = 0
    phase = 0
    mbarrier.wait(held, 0)
    for index in range(GROUP * blocks):
        head = kv_head * GROUP + index // blocks
        query = (edge + index % blocks) * 64
        token = query + gl.arange(0, 64, query_layout)
        row = head.to(gl.int64) * pitch + start + token
        if WANT_V:
            offset = -gl.load(lse + row, mask=token < length, other=0.0)
        if WANT_K:
            deltas = gl.load(delta + row, mask=token < length, other=0.0)
        mbarrier.wait(full.index(slot), phase)
        if query + 64 > length:
            zero_past(q_tiles.index(slot), length - query, wide)
            zero_past(grad_tiles.index(slot), length - query, wide)
        if WANT_V:
            scores = warpgroup_mma(k_tile, q_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
        if WANT_K:
            grads = grad_tiles.index(slot).permute((1, 0))
            products = warpgroup_mma(v_tile, grads, zeros, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=(products,))
        if WANT_V:
            scores = warpgroup_mma_wait(0, deps=(scores,))
            p = probabilities(scores, gl.expand_dims(offset, 0), LOG2_SCALE)
            if query < first + 64:
                p = gl.where(key[:, None] <= token[None, :], p, 0.0)
            values = gl.convert_layout(p.to(gl.bfloat16), operand)
        if not WANT_K:
            mbarrier.wait(p_empty.index(index % 2), index // 2 % 2 ^ 1)
            p_tiles.index(index % 2).store(p)
            mbarrier.arrive(p_full.index(index % 2))
        if not WANT_V:
            mbarrier.wait(p_full.index(index % 2), index // 2 % 2)
            p = p_tiles.index(index % 2).load(layout)
            mbarrier.arrive(p_empty.index(index % 2))
        if WANT_K:
            ds = gl.convert_layout((p * (products - gl.expand_dims(deltas, 0))).to(gl.bfloat16), operand)
        if WANT_V:
            dv_sums = warpgroup_mma(values, grad_tiles.index(slot), dv_sums, is_async=True)
        if WANT_K:
            dk_sums = warpgroup_mma(ds, q_tiles.index(slot), dk_sums, is_async=True)
            dk_sums = warpgroup_mma_wait(0, deps=(dk_sums,))
        if WANT_V:
            dv_sums = warpgroup_mma_wait(0, deps=(dv_sums,))
        mbarrier.arrive(empty.index(slot))
        slot, phase = advance(slot, phase, STAGES)
    key = first + gl.arange(0, 64, gl.SliceLayout(1, sum_layout))
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, sum_layout))[None, :]
    rows = (((start + key).to(gl.int64) * KEY_HEADS + kv_head) * HEAD_DIM)[:, None] + column
    valid = (key < length)[:, None]
    if WANT_V:
        gl.store(dv + rows, dv_sums.to(gl.bfloat16), mask=valid)
    if WANT_K:
        gl.store(dk + rows, (dk_sums * SCALE).to(gl.bfloat16), mask=valid)


@gluon.jit(do_not_specialize=["sequences", "pitch", "q_row", "q_column", "k_row", "k_column", "v_row", "v_column"])
def attention_dkdv_kernel(q, grad, k, v, lse, delta, dk, dv, cu_seqlens, sequences, pitch, q_row, q_column, k_row,
                           k_column, v_row, v_column, KEY_HEADS: gl.constexpr, GROUP: gl.constexpr,
                           SEQUENCES: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
                           HEAD_DIM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """dk and dv of 128 keys of a key head; of 64 where one warpgroup can hold only one of the two.

    Then the warpgroup of dv takes the probabilities, and passes them to that of dk.
    """
    kv_head = gl.program_id(0) % KEY_HEADS
    slot = gl.program_id(0) // KEY_HEADS  # early keys, which most rows see, of every head first
    _, start, length, first = owner(cu_seqlens, sequences, slot, SEQUENCES, KEYS)
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
        p_tiles = gl.allocate_shared_memory(gl.float32, [2, 64, 64 if KEYS == 64 else 8],
                                            gl.NVMMASharedLayout(128 if KEYS == 64 else 32, 32, 2))  # fmt: skip
        p_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        p_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for half in gl.static_range(2):
            mbarrier.init(p_full.index(half), count=1)
            mbarrier.init(p_empty.index(half), count=1)
        passed = (p_tiles, p_full, p_empty)
        mbarrier.init(held, count=1)
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=2)
        ring = (q_tiles, grad_tiles, full, empty)
        span = (start, first, kv_head, edge, blocks)
        lower: gl.constexpr = KEYS // 128
        gl.warp_specialize(
            [
                (_key_rows, (lse, delta, dk, dv, ring, passed, k_tile.slice(0, 64), v_tile.slice(0, 64), held, span,
                             length, pitch, 0, KEY_HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, STAGES, KEYS == 128,
                             True)),
                (_key_rows, (lse, delta, dk, dv, ring, passed, k_tile.slice(lower * 64, 64),
                             v_tile.slice(lower * 64, 64), held, span, length, pitch, lower, KEY_HEADS, GROUP, SCALE,
                             LOG2_SCALE, HEAD_DIM, STAGES, True, KEYS == 128)),
                (_copy_queries, (q, grad, k, v, ring, k_tile, v_tile, held, span, (q_row, q_column),
                                 (kv_head * k_row, kv_head * k_column), (kv_head * v_row, kv_head * v_column), KEYS,
                                 GROUP, HEAD_DIM, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
