# SPDX-License-Identifier: Apache-2.0
"""Gradients of the queries of causal attention: tiles of rows walk the key blocks at and below them."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_assignment import aligned_start, owner
from .hopper_rows import advance, probabilities, zero_past


@gluon.jit
def _copy_keys(k, v, ring, start, blocks, k_step, v_step, BLOCK: gl.constexpr, HEAD_DIM: gl.constexpr,
               STAGES: gl.constexpr):  # fmt: skip
    k_tiles, v_tiles, full, empty = ring
    slot = 0
    phase = 0
    for block in range(blocks):
        mbarrier.wait(empty.index(slot), phase ^ 1)
        mbarrier.expect(full.index(slot), BLOCK * HEAD_DIM * 4)
        row = start + block * BLOCK
        tma.async_copy_global_to_shared(k, [row + k_step[0], k_step[1]], full.index(slot), k_tiles.index(slot))
        tma.async_copy_global_to_shared(v, [row + v_step[0], v_step[1]], full.index(slot), v_tiles.index(slot))
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit
def _products(q_tile, grad_tile, ring, slot, phase, left, zeros, wide: gl.constexpr):
    """Scores and products of one block of keys, of which `left` are in the sequence, still being multiplied."""
    k_tiles, v_tiles, full, _ = ring
    mbarrier.wait(full.index(slot), phase)
    if left < zeros.shape[1]:
        zero_past(k_tiles.index(slot), left, wide)
        zero_past(v_tiles.index(slot), left, wide)
    scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    products = warpgroup_mma(grad_tile, v_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    return scores, products


@gluon.jit
def _gather(scores, products, offset, deltas, position, tile, key, keys, sums, LOG2_SCALE: gl.constexpr):
    """sums + ds k, still being multiplied; key: the first of the block."""
    p = probabilities(scores, offset, LOG2_SCALE)
    if key + p.shape[1] > tile:
        keys_here = key + gl.arange(0, p.shape[1], gl.SliceLayout(0, p.type.layout))
        p = gl.where(keys_here[None, :] <= position[:, None], p, 0.0)
    ds = (p * (products - deltas)).to(gl.bfloat16)
    return warpgroup_mma(gl.convert_layout(ds, gl.DotOperandLayout(0, sums.type.layout, 2)), keys, sums, is_async=True)


@gluon.jit
def _query_rows(q, out, grad, lse, rows_out, dq, q_tile, grad_tile, ring, place, q_token, q_head, HALF: gl.constexpr,
                HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
                HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    start, length, tile, blocks, kv_head, pitch, row_start, row_pitch = place
    k_tiles, _, _, empty = ring
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    dq_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    tile_tokens: gl.constexpr = 64 // GROUP
    tile += HALF * tile_tokens
    row = gl.arange(0, 64, gl.SliceLayout(1, wide))
    token = tile + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = (row < tile_tokens * GROUP) & (token < length)
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, wide))[None, :]
    q_rows = ((start + token).to(gl.int64) * q_token + head * q_head)[:, None] + column
    rows = (((start + token).to(gl.int64) * HEADS + head) * HEAD_DIM)[:, None] + column
    grads = gl.load(grad + rows, mask=valid[:, None], other=0.0)
    outs = gl.load(out + rows, mask=valid[:, None], other=0.0)
    q_tile.store(gl.load(q + q_rows, mask=valid[:, None], other=0.0))
    grad_tile.store(grads)
    fence_async_shared()
    deltas = gl.sum(grads.to(gl.float32) * outs.to(gl.float32), 1)
    lses = gl.load(lse + head.to(gl.int64) * pitch + start + token, mask=valid, other=0.0)
    known = head.to(gl.int64) * (2 * row_pitch) + row_start + token
    gl.store(rows_out + known, -lses, mask=valid)
    gl.store(rows_out + row_pitch + known, deltas, mask=valid)
    offset = gl.expand_dims(-gl.convert_layout(lses, row_layout), 1)
    deltas = gl.expand_dims(gl.convert_layout(deltas, row_layout), 1)
    position = tile + gl.arange(0, 64, row_layout) // GROUP

    sums = gl.zeros([64, HEAD_DIM], gl.float32, dq_layout)
    zeros = gl.zeros([64, BLOCK], gl.float32, layout)
    scores, products = _products(q_tile, grad_tile, ring, 0, 0, length, zeros, wide)
    scores, products = warpgroup_mma_wait(0, deps=(scores, products))
    slot = 0
    phase = 0
    for block in range(blocks - 1):
        before = slot
        slot, phase = advance(slot, phase, STAGES)
        left = length - (block + 1) * BLOCK
        next_scores, next_products = _products(q_tile, grad_tile, ring, slot, phase, left, zeros, wide)
        sums = _gather(scores, products, offset, deltas, position, tile, block * BLOCK, k_tiles.index(before), sums,
                       LOG2_SCALE)  # fmt: skip
        scores, products, sums = warpgroup_mma_wait(0, deps=(next_scores, next_products, sums))
        mbarrier.arrive(empty.index(before))
    sums = _gather(scores, products, offset, deltas, position, tile, (blocks - 1) * BLOCK, k_tiles.index(slot), sums,
                   LOG2_SCALE)  # fmt: skip
    sums = warpgroup_mma_wait(0, deps=(sums,))
    q_tile.store((sums * SCALE).to(gl.bfloat16))
    gl.store(dq + rows, q_tile.load(wide), mask=valid[:, None])


@gluon.jit(do_not_specialize=["sequences", "pitch", "row_pitch", "q_token", "q_head", "k_row", "k_column", "v_row",
                              "v_column"])  # fmt: skip
def attention_dq_kernel(q, k, v, out, grad, lse, rows_out, dq, cu_seqlens, sequences, pitch, row_pitch, q_token, q_head,
                        k_row, k_column, v_row, v_column, HEADS: gl.constexpr, GROUP: gl.constexpr,
                        SEQUENCES: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr, HEAD_DIM: gl.constexpr,
                        BLOCK: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """dq of 128 rows: the query heads of a key head for consecutive tokens.

    And rows_out [q_heads, 2, row_pitch]: what the exponentials of a row and its ds add and subtract.
    """
    tile_tokens: gl.constexpr = 64 // GROUP * 2
    kv_heads: gl.constexpr = HEADS // GROUP
    slot = (gl.num_programs(0) - 1 - gl.program_id(0)) // kv_heads  # long rows first, of every head
    kv_head = gl.program_id(0) % kv_heads
    sequence, start, length, tile = owner(cu_seqlens, sequences, slot, SEQUENCES, tile_tokens)
    if tile < length:
        blocks = (gl.minimum(tile + tile_tokens, length) + BLOCK - 1) // BLOCK
        q_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, HEAD_DIM], gl.NVMMASharedLayout(128, 16, 2))
        grad_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, HEAD_DIM], gl.NVMMASharedLayout(128, 16, 2))
        k_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, HEAD_DIM], k.layout)
        v_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BLOCK, HEAD_DIM], v.layout)
        full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(full.index(stage), count=1)
            mbarrier.init(empty.index(stage), count=2)
        ring = (k_tiles, v_tiles, full, empty)
        place = (start, length, tile, blocks, kv_head, pitch, aligned_start(start, sequence), row_pitch)
        k_step = (kv_head * k_row, kv_head * k_column)
        v_step = (kv_head * v_row, kv_head * v_column)
        gl.warp_specialize(
            [
                (_query_rows, (q, out, grad, lse, rows_out, dq, q_tiles.index(0), grad_tiles.index(0), ring, place,
                               q_token * 8, q_head * 8, 0, HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, BLOCK, STAGES)),
                (_query_rows, (q, out, grad, lse, rows_out, dq, q_tiles.index(1), grad_tiles.index(1), ring, place,
                               q_token * 8, q_head * 8, 1, HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, BLOCK, STAGES)),
                (_copy_keys, (k, v, ring, start, blocks, k_step, v_step, BLOCK, HEAD_DIM, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip
