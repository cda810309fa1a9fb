# SPDX-License-Identifier: Apache-2.0
"""The 64 rows of one warpgroup of `hopper_attention`: products, exponentials, running sums, results of splits.

A warpgroup multiplies the scores of a block while the values of the block before are still being accumulated, and takes
the exponentials of one product under the other (Shah et al., 2024).
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_assignment import block_at, share_of, tile_of
from .hopper_splits import finish_split, finite, scaled


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _halve(x, COLUMNS: gl.constexpr):
    for _ in gl.static_range(16):
        if x.shape[1] > COLUMNS:
            left, right = gl.split(gl.permute(gl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
            x = left + right
    return x


@gluon.jit
def probabilities(scores, offset, LOG2_SCALE: gl.constexpr):
    """exp2 of scores * LOG2_SCALE + offset, the two as one fused operation."""
    scale = gl.full(scores.shape, LOG2_SCALE, gl.float32, scores.type.layout)
    return gl.exp2(gl.fma(scores, scale, offset.broadcast_to(scores.shape)))


@gluon.jit
def _exponentials(scores, position, first, top, total, SCALE: gl.constexpr, EDGE: gl.constexpr, layout: gl.constexpr):
    if EDGE:
        key = first + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
        scores = gl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * SCALE)
    base = finite(new_top) if EDGE else new_top
    shrink = gl.exp2(top - base)
    p = probabilities(scores, gl.expand_dims(-base, 1), SCALE)
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    shrink_total = gl.convert_layout(shrink, gl.SliceLayout(1, total_layout), assert_trivial=True)
    total = total * shrink_total[:, None] + gl.convert_layout(_halve(p, 8), total_layout, assert_trivial=True)
    return p, new_top, total, shrink


@gluon.jit
def zero_past(tile, rows, layout: gl.constexpr):
    """Zeroes a shared tile from `rows` on: what lies past a sequence may be NaN, and 0 * NaN is NaN.

    Every warpgroup that reads the tile does this for itself; they all write the same.
    """
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    tile.store(gl.where(row[:, None] < rows, tile.load(layout), 0.0))
    fence_async_shared()


@gluon.jit
def _step(q_tile, ring, slot, phase, position, first_key, p, s_top, s_total, s_acc, merged, parts, split, place,
          HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr, SHARED: gl.constexpr,
          NEW_SPLIT: gl.constexpr, EDGE: gl.constexpr):  # fmt: skip
    """Scores of a block and, under its exponentials, the values of the block before; a new split finishes the last."""
    k_tiles, v_tiles, full, empty = ring
    layout: gl.constexpr = s_top.type.layout.parent
    acc_layout: gl.constexpr = s_acc.type.layout
    mbarrier.wait(full.index(slot), phase)
    scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), v_tiles.index(slot), s_acc,
                          is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(1, deps=(scores,))
    top = gl.full([64], float("-inf"), gl.float32, s_top.type.layout) if NEW_SPLIT else s_top
    p, new_top, new_total, shrink = _exponentials(scores, position, first_key, top, s_total, SCALE, EDGE, layout)
    mbarrier.wait(full.index(slot), phase)  # again, so that no exponential is scheduled below the next line
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    mbarrier.arrive(empty.index(slot))
    if NEW_SPLIT:
        merged = finish_split(merged, parts, split, s_top, s_total, s_acc, place, HEADS, GROUP, SHARED)  # fmt: skip
    return p.to(gl.bfloat16), new_top, new_total, scaled(s_acc, shrink), merged


@gluon.jit
def _rows(q, out, lse, parts, q_tile, ring, place, span, q_token, q_head, HALF: gl.constexpr, HEADS: gl.constexpr,
          GROUP: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr,
          HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, SHARED: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KV_BLOCK, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    tile_tokens: gl.constexpr = 64 // GROUP
    start, tokens, queries, tile, kv_head = place
    keys, count, first, step = span
    tile += HALF * tile_tokens
    place = (start, tokens, queries, tile, kv_head)

    row = gl.arange(0, 64, gl.SliceLayout(1, wide))
    token = tile + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = ((row < tile_tokens * GROUP) & (token < queries))[:, None]
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, wide))[None, :]
    q_rows = (start + token).to(gl.int64) * q_token + head * q_head
    q_tile.store(gl.load(q + q_rows[:, None] + column, mask=valid, other=0.0))
    fence_async_shared()

    position = keys - queries + tile + gl.arange(0, 64, row_layout) // GROUP
    whole = share_of((keys - queries + tile + 1) // KV_BLOCK, first, step, SPLIT_BLOCKS)
    s_top = gl.full([64], float("-inf"), gl.float32, row_layout)
    s_total = gl.zeros([64, 8], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
    s_acc = gl.zeros([64, HEAD_DIM], gl.float32, acc_layout)
    merged = (s_top, gl.zeros([64], gl.float32, row_layout), s_acc)

    k_tiles, v_tiles, full, empty = ring
    mbarrier.wait(full.index(0), 0)
    scores = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(empty.index(0))
    first_key = first * SPLIT_BLOCKS * KV_BLOCK
    p, s_top, s_total, _ = _exponentials(scores, position, first_key, s_top, s_total, SCALE, True, layout)
    p = p.to(gl.bfloat16)
    slot, phase = advance(0, 0, STAGES)
    # Split by split, so that what is merged lies idle while blocks are multiplied.
    for begin in range(0, count, SPLIT_BLOCKS):
        end = gl.minimum(begin + SPLIT_BLOCKS, count)
        for _index in range(begin + 1, gl.minimum(whole, end)):
            p, s_top, s_total, s_acc, merged = _step(
                q_tile, ring, slot, phase, position, 0, p, s_top, s_total, s_acc, merged, parts, 0, place,
                HEADS, GROUP, SCALE, KV_BLOCK, SHARED, False, False)  # fmt: skip
            slot, phase = advance(slot, phase, STAGES)
        for index in range(gl.maximum(whole, begin + 1), end):
            key = block_at(index, first, step, SPLIT_BLOCKS) * KV_BLOCK
            p, s_top, s_total, s_acc, merged = _step(
                q_tile, ring, slot, phase, position, key, p, s_top, s_total, s_acc, merged, parts, 0, place,
                HEADS, GROUP, SCALE, KV_BLOCK, SHARED, False, True)  # fmt: skip
            slot, phase = advance(slot, phase, STAGES)
        if end < count:
            split = block_at(begin, first, step, SPLIT_BLOCKS) // SPLIT_BLOCKS
            key = block_at(end, first, step, SPLIT_BLOCKS) * KV_BLOCK
            p, s_top, s_total, s_acc, merged = _step(
                q_tile, ring, slot, phase, position, key, p, s_top, s_total, s_acc, merged, parts, split,
                place, HEADS, GROUP, SCALE, KV_BLOCK, SHARED, True, True)  # fmt: skip
            slot, phase = advance(slot, phase, STAGES)

    last = block_at(count - 1, first, step, SPLIT_BLOCKS)
    mbarrier.wait(full.index(slot), phase)
    values = v_tiles.index(slot)
    if (last + 1) * KV_BLOCK > keys:
        zero_past(values, keys - last * KV_BLOCK, wide)
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), values, s_acc, is_async=True)
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    merged = finish_split(merged, parts, last // SPLIT_BLOCKS, s_top, s_total, s_acc, place, HEADS, GROUP,
                          SHARED)  # fmt: skip
    if not SHARED:
        top, total, acc = merged
        q_tile.store((scaled(acc, gl.div_rn(1.0, total)) + 0.0).to(gl.bfloat16))
        out_rows = ((start + token).to(gl.int64) * HEADS + head) * HEAD_DIM
        gl.store(out + out_rows[:, None] + column, q_tile.load(wide), mask=valid)
        if LSE:
            row = gl.arange(0, 64, row_layout)
            token = tile + row // GROUP
            head = kv_head * GROUP + row % GROUP
            gl.store(lse + head.to(gl.int64) * tokens + start + token, top + gl.log2(total),
                     mask=(row < tile_tokens * GROUP) & (token < queries))  # fmt: skip


@gluon.jit
def multiply(q, out, lse, parts, q_tile, ring, batch, tokens, q_token, q_head, HALF: gl.constexpr, HEADS: gl.constexpr,
             GROUP: gl.constexpr, PAGE: gl.constexpr, SEQUENCES: gl.constexpr, TILE: gl.constexpr,
             SINGLE: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr,
             HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, SHARED: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    _sequence, kv_head, start, queries, tile, keys, blocks = tile_of(
        batch, HEADS // GROUP, SEQUENCES, TILE, SINGLE, KV_BLOCK, PAGE, 4)  # fmt: skip
    first = gl.program_id(1)
    step = gl.num_programs(1)
    if first * SPLIT_BLOCKS < blocks:
        span = (keys, share_of(blocks, first, step, SPLIT_BLOCKS), first, step)
        place = (start, tokens, queries, tile, kv_head)
        _rows(q, out, lse, parts, q_tile, ring, place, span, q_token, q_head, HALF, HEADS, GROUP, SCALE, KV_BLOCK,
              SPLIT_BLOCKS, HEAD_DIM, STAGES, SHARED, LSE)  # fmt: skip
