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


@gluon.jit
def owner(cu_seqlens, sequences, slot, SEQUENCES: gl.constexpr, TILE: gl.constexpr):
    """The sequence that owns a slot of TILE tokens, its start and length, and the slot's first token in it.

    Every sequence has as many slots as tiles, perhaps one more: then the first token is at or past its end.
    """
    index = gl.arange(0, SEQUENCES, gl.BlockedLayout([1], [32], [4], [0]))
    begin = gl.load(cu_seqlens + index, mask=index < sequences, other=0)
    sequence = gl.max(gl.where((index < sequences) & (begin // TILE + index <= slot), index, 0), 0)
    start = gl.load(cu_seqlens + sequence)
    return sequence, start, gl.load(cu_seqlens + sequence + 1) - start, (slot - start // TILE - sequence) * TILE


@gluon.jit
def advance(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def block_at(index, first, step, SPLIT_BLOCKS: gl.constexpr):
    """The index-th block of a program that owns the splits first, first + step, ..."""
    return (index // SPLIT_BLOCKS * step + first) * SPLIT_BLOCKS + index % SPLIT_BLOCKS


@gluon.jit
def share_of(blocks, first, step, SPLIT_BLOCKS: gl.constexpr):
    """How many of the first `blocks` blocks that program owns."""
    splits = blocks // SPLIT_BLOCKS
    tail = gl.where(splits % step == first, blocks % SPLIT_BLOCKS, 0)
    return (splits - first + step - 1) // step * SPLIT_BLOCKS + tail


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
def _finite(top):
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def _exponentials(scores, position, first, top, total, SCALE: gl.constexpr, EDGE: gl.constexpr, layout: gl.constexpr):
    if EDGE:
        key = first + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
        scores = gl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * SCALE)
    base = _finite(new_top) if EDGE else new_top
    shrink = gl.exp2(top - base)
    p = probabilities(scores, gl.expand_dims(-base, 1), SCALE)
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    shrink_total = gl.convert_layout(shrink, gl.SliceLayout(1, total_layout), assert_trivial=True)
    total = total * shrink_total[:, None] + gl.convert_layout(_halve(p, 8), total_layout, assert_trivial=True)
    return p, new_top, total, shrink


@gluon.jit
def _row_sum(total, row_layout: gl.constexpr):
    even, odd = gl.split(gl.reshape(total, (64, 4, 2)))
    # Four columns in four lanes: shuffles by two, then by one, which is the order of halves.
    return gl.convert_layout(gl.sum(even + odd, 1), row_layout, assert_trivial=True)


@gluon.jit
def _scaled(acc, factor):
    layout: gl.constexpr = gl.SliceLayout(1, acc.type.layout)
    return acc * gl.convert_layout(factor, layout, assert_trivial=True)[:, None]


@gluon.jit
def _merge(merged, split_top, split_total, split_acc):
    top, total, acc = merged
    new_top = gl.maximum(top, split_top)
    base = _finite(new_top)
    old = gl.exp2(top - base)
    new = gl.exp2(split_top - base)
    return new_top, total * old + split_total * new, _scaled(acc, old) + _scaled(split_acc, new)


@gluon.jit
def _finish_split(merged, parts, split, s_top, s_total, s_acc, place, HEADS: gl.constexpr, GROUP: gl.constexpr,
                 SHARED: gl.constexpr):  # fmt: skip
    """Merges a split into the rows' result or, where splits are shared out, leaves it for the combine kernel."""
    row_layout: gl.constexpr = s_top.type.layout
    s_sum = _row_sum(s_total, row_layout)
    if SHARED:
        tops, totals, accs = parts
        start, tokens, queries, tile, kv_head = place
        row = gl.arange(0, 64, row_layout)
        token = tile + row // GROUP
        valid = (row < 64 // GROUP * GROUP) & (token < queries)
        part = (split.to(gl.int64) * tokens + start + token) * HEADS + kv_head * GROUP + row % GROUP
        gl.store(tops + part, s_top, mask=valid)
        gl.store(totals + part, s_sum, mask=valid)
        acc_layout: gl.constexpr = s_acc.type.layout
        acc_rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
        column = gl.arange(0, s_acc.shape[1], gl.SliceLayout(0, acc_layout))
        part = gl.convert_layout(part, acc_rows, assert_trivial=True)[:, None] * s_acc.shape[1] + column[None, :]
        gl.store(accs + part, s_acc, mask=gl.convert_layout(valid, acc_rows, assert_trivial=True)[:, None])
        return merged
    return _merge(merged, s_top, s_sum, s_acc)


@gluon.jit
def zero_past(tile, rows, layout: gl.constexpr):
    """Zeroes a shared tile from `rows` on: what lies past a sequence may be NaN, and 0 * NaN is NaN.

    Every warpgroup that reads the tile does this for itself; they all write the same.
    """
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))
    tile.store(gl.where(row[:, None] < rows, tile.load(layout), 0.0))
    fence_async_shared()


@gluon.jit
def _step(q_tile, ring, slot, phase, before, position, first_key, new_split, split, p, s_top, s_total, s_acc, merged,
          parts, place, HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr,
          SHARED: gl.constexpr, EDGE: gl.constexpr):  # fmt: skip
    """Scores of a block and, under its exponentials, the values of the block before; a new split finishes the last."""
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = ring
    layout: gl.constexpr = s_top.type.layout.parent
    acc_layout: gl.constexpr = s_acc.type.layout
    mbarrier.wait(k_full.index(slot), phase)
    scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), v_tiles.index(before), s_acc,
                          is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(k_empty.index(slot))
    start_top = gl.where(new_split, float("-inf"), s_top)
    p, new_top, new_total, shrink = _exponentials(scores, position, first_key, start_top, s_total, SCALE, EDGE, layout)
    mbarrier.wait(v_full.index(slot), phase)  # here, so that no exponential is scheduled below the next line
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    mbarrier.arrive(v_empty.index(before))
    if new_split:
        merged = _finish_split(merged, parts, split, s_top, s_total, s_acc, place, HEADS, GROUP, SHARED)  # fmt: skip
    return p.to(gl.bfloat16), new_top, new_total, _scaled(s_acc, shrink), merged


@gluon.jit
def multiply(q, out, lse, parts, q_tile, ring, place, span, q_token, q_head, HALF: gl.constexpr, HEADS: gl.constexpr,
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

    k_tiles, v_tiles, k_full, k_empty, v_full, _ = ring
    mbarrier.wait(k_full.index(0), 0)
    scores = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(k_empty.index(0))
    first_key = first * SPLIT_BLOCKS * KV_BLOCK
    p, s_top, s_total, _ = _exponentials(scores, position, first_key, s_top, s_total, SCALE, True, layout)
    p = p.to(gl.bfloat16)
    mbarrier.wait(v_full.index(0), 0)
    before = 0
    slot, phase = advance(0, 0, STAGES)
    for index in range(1, gl.minimum(whole, count)):
        p, s_top, s_total, s_acc, merged = _step(
            q_tile, ring, slot, phase, before, position, 0, index % SPLIT_BLOCKS == 0,
            block_at(index - 1, first, step, SPLIT_BLOCKS) // SPLIT_BLOCKS, p, s_top, s_total, s_acc, merged, parts,
            place, HEADS, GROUP, SCALE, KV_BLOCK, SHARED, False)  # fmt: skip
        before = slot
        slot, phase = advance(slot, phase, STAGES)
    for index in range(gl.maximum(whole, 1), count):
        p, s_top, s_total, s_acc, merged = _step(
            q_tile, ring, slot, phase, before, position, block_at(index, first, step, SPLIT_BLOCKS) * KV_BLOCK,
            index % SPLIT_BLOCKS == 0, block_at(index - 1, first, step, SPLIT_BLOCKS) // SPLIT_BLOCKS, p, s_top,
            s_total, s_acc, merged, parts, place, HEADS, GROUP, SCALE, KV_BLOCK, SHARED, True)  # fmt: skip
        before = slot
        slot, phase = advance(slot, phase, STAGES)

    last = block_at(count - 1, first, step, SPLIT_BLOCKS)
    values = v_tiles.index(before)
    if (last + 1) * KV_BLOCK > keys:
        zero_past(values, keys - last * KV_BLOCK, wide)
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), values, s_acc, is_async=True)
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    merged = _finish_split(merged, parts, last // SPLIT_BLOCKS, s_top, s_total, s_acc, place, HEADS, GROUP,
                          SHARED)  # fmt: skip
    if not SHARED:
        top, total, acc = merged
        q_tile.store((_scaled(acc, gl.div_rn(1.0, total)) + 0.0).to(gl.bfloat16))
        out_rows = ((start + token).to(gl.int64) * HEADS + head) * HEAD_DIM
        gl.store(out + out_rows[:, None] + column, q_tile.load(wide), mask=valid)
        if LSE:
            row = gl.arange(0, 64, row_layout)
            token = tile + row // GROUP
            head = kv_head * GROUP + row % GROUP
            gl.store(lse + head.to(gl.int64) * tokens + start + token, top + gl.log2(total),
                     mask=(row < tile_tokens * GROUP) & (token < queries))  # fmt: skip
