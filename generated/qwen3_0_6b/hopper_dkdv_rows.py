# SPDX-License-Identifier: Apache-2.0
"""The 64 keys of one warpgroup of `hopper_attention_dkdv`: their dk and dv, or one of the two.

Scores of the next block of queries are multiplied beside the sums of this one.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from .hopper_rows import advance, probabilities, zero_past


@gluon.jit
def _known(values, query, length):
    """A figure of each of 64 queries [1, 64]; zero past the sequence, where anything may stand."""
    if query + 64 > length:
        token = query + gl.arange(0, 64, gl.SliceLayout(0, values.type.layout))
        values = gl.where(token[None, :] < length, values, 0.0)
    return values


@gluon.jit
def _scores(tile, tiles, ring, slot, phase, query, length, layout: gl.constexpr):
    """The product of a tile of keys or values with a block of `tiles` of the ring, still being multiplied."""
    q_tiles, grad_tiles, _, full, _ = ring
    width: gl.constexpr = tile.shape[1]
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // width, width // 8], [4, 1], [1, 0])
    mbarrier.wait(full.index(slot), phase)
    if query + 64 > length:
        zero_past(q_tiles.index(slot), length - query, wide)
        zero_past(grad_tiles.index(slot), length - query, wide)
    zeros = gl.zeros([64, 64], gl.float32, layout)
    return warpgroup_mma(tile, tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _seen(scores, row_tile, query, length, first, LOG2_SCALE: gl.constexpr):
    """Probabilities of 64 keys from `first` for a block of queries: zero where the query comes before the key."""
    layout: gl.constexpr = scores.type.layout
    p = probabilities(scores, _known(row_tile.slice(0, 1).load(layout), query, length), LOG2_SCALE)
    if query < first + 64:
        key = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
        token = query + gl.arange(0, 64, gl.SliceLayout(0, layout))
        p = gl.where(key[:, None] <= token[None, :], p, 0.0)
    return p


@gluon.jit
def _operand(x, sums):
    return gl.convert_layout(x.to(gl.bfloat16), gl.DotOperandLayout(0, sums.type.layout, 2))


@gluon.jit
def _both(scores, v_tile, ring, slot, query, length, first, dk_sums, dv_sums, LOG2_SCALE: gl.constexpr):
    """A block of queries into dk and dv, still being multiplied."""
    q_tiles, grad_tiles, row_tiles, _, _ = ring
    layout: gl.constexpr = scores.type.layout
    zeros = gl.zeros([64, 64], gl.float32, layout)
    products = warpgroup_mma(v_tile, grad_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
    p = _seen(scores, row_tiles.index(slot), query, length, first, LOG2_SCALE)
    values = _operand(p, dv_sums)
    dv_sums = warpgroup_mma(values, grad_tiles.index(slot), dv_sums, is_async=True)
    deltas = _known(row_tiles.index(slot).slice(1, 1).load(layout), query, length)
    products = warpgroup_mma_wait(1, deps=(products,))
    ds = _operand(p * (products - deltas), dk_sums)
    dk_sums = warpgroup_mma(ds, q_tiles.index(slot), dk_sums, is_async=True)
    return dk_sums, dv_sums


@gluon.jit
def _next(block, slot, phase, edge, blocks, STAGES: gl.constexpr):
    """The block of queries and the slot that follow; after the last block comes the first one, of the next head."""
    slot, phase = advance(slot, phase, STAGES)
    return gl.where(block + 1 == edge + blocks, edge, block + 1), slot, phase


@gluon.jit
def _store(target, sums, start, first, length, place, KEY_HEADS: gl.constexpr):
    layout: gl.constexpr = sums.type.layout
    key = first + gl.arange(0, 64, gl.SliceLayout(1, layout))
    column = gl.arange(0, sums.shape[1], gl.SliceLayout(0, layout))[None, :]
    rows = ((place + (start + key).to(gl.int64) * KEY_HEADS) * sums.shape[1])[:, None] + column
    gl.store(target + rows, sums.to(target.dtype.element_ty), mask=(key < length)[:, None])


@gluon.jit
def both_rows(dk, dv, ring, k_tile, v_tile, held, span, length, place, HALF: gl.constexpr, KEY_HEADS: gl.constexpr,
               HEADS: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr, HEAD_DIM: gl.constexpr,
               STAGES: gl.constexpr):  # fmt: skip
    """dk and dv of 64 of 128 keys."""
    start, first, _, edge, blocks = span
    q_tiles, _, _, _, empty = ring
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    first += HALF * 64
    dk_sums = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    dv_sums = gl.zeros([64, HEAD_DIM], gl.float32, sum_layout)
    block = edge
    slot = 0
    phase = 0
    mbarrier.wait(held, 0)
    scores = _scores(k_tile, q_tiles, ring, slot, phase, block * 64, length, layout)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    for _turn in range(HEADS * blocks - 1):
        dk_sums, dv_sums = _both(scores, v_tile, ring, slot, block * 64, length, first, dk_sums, dv_sums, LOG2_SCALE)
        before = slot
        block, slot, phase = _next(block, slot, phase, edge, blocks, STAGES)
        scores = _scores(k_tile, q_tiles, ring, slot, phase, block * 64, length, layout)
        scores, dk_sums, dv_sums = warpgroup_mma_wait(0, deps=(scores, dk_sums, dv_sums))
        mbarrier.arrive(empty.index(before))
    dk_sums, dv_sums = _both(scores, v_tile, ring, slot, block * 64, length, first, dk_sums, dv_sums, LOG2_SCALE)
    dk_sums, dv_sums = warpgroup_mma_wait(0, deps=(dk_sums, dv_sums))
    _store(dk, dk_sums * SCALE, start, first, length, place, KEY_HEADS)
    _store(dv, dv_sums, start, first, length, place, KEY_HEADS)


@gluon.jit
def _one(scores, ring, passed, turn, slot, query, length, first, sums, LOG2_SCALE: gl.constexpr, WANT_K: gl.constexpr):
    """A block of queries into dv or, WANT_K, dk, still being multiplied; the first passes the probabilities on."""
    q_tiles, grad_tiles, row_tiles, _, _ = ring
    p_tiles, p_full, p_empty = passed
    layout: gl.constexpr = scores.type.layout
    if WANT_K:
        deltas = _known(row_tiles.index(slot).slice(1, 1).load(layout), query, length)
        mbarrier.wait(p_full.index(turn % 2), turn // 2 % 2)
        p = p_tiles.index(turn % 2).load(layout)
        mbarrier.arrive(p_empty.index(turn % 2))
        return warpgroup_mma(_operand(p * (scores - deltas), sums), q_tiles.index(slot), sums, is_async=True)
    p = _seen(scores, row_tiles.index(slot), query, length, first, LOG2_SCALE)
    mbarrier.wait(p_empty.index(turn % 2), turn // 2 % 2 ^ 1)
    p_tiles.index(turn % 2).store(p)
    mbarrier.arrive(p_full.index(turn % 2))
    return warpgroup_mma(_operand(p, sums), grad_tiles.index(slot), sums, is_async=True)


@gluon.jit
def one_rows(target, ring, passed, tile, held, span, length, place, KEY_HEADS: gl.constexpr, HEADS: gl.constexpr,
              SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
              WANT_K: gl.constexpr):  # fmt: skip
    """dv or, WANT_K, dk of 64 keys."""
    start, first, _, edge, blocks = span
    q_tiles, grad_tiles, _, _, empty = ring
    tiles = grad_tiles if WANT_K else q_tiles
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    sums = gl.zeros([64, HEAD_DIM], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16]))
    block = edge
    slot = 0
    phase = 0
    mbarrier.wait(held, 0)
    scores = _scores(tile, tiles, ring, slot, phase, block * 64, length, layout)
    scores = warpgroup_mma_wait(0, deps=(scores,))
    for turn in range(HEADS * blocks - 1):
        sums = _one(scores, ring, passed, turn, slot, block * 64, length, first, sums, LOG2_SCALE, WANT_K)
        before = slot
        block, slot, phase = _next(block, slot, phase, edge, blocks, STAGES)
        scores = _scores(tile, tiles, ring, slot, phase, block * 64, length, layout)
        scores, sums = warpgroup_mma_wait(0, deps=(scores, sums))
        mbarrier.arrive(empty.index(before))
    sums = _one(scores, ring, passed, HEADS * blocks - 1, slot, block * 64, length, first, sums, LOG2_SCALE, WANT_K)
    sums = warpgroup_mma_wait(0, deps=(sums,))
    _store(target, sums * SCALE if WANT_K else sums, start, first, length, place, KEY_HEADS)
