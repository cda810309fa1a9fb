# SPDX-License-Identifier: Apache-2.0
"""Gradients of causal attention over packed sequences, warp-specialised for Hopper; deterministic, no atomics.

With p = exp2(log2_scale * q k^T - lse) and delta = sum(grad * out) of a row: dv = p^T grad, dq = scale * ds k and
dk = scale * ds^T q for ds = p * (grad v^T - delta) (Dao et al., 2022). Tiles of query rows gather dq from the blocks of
keys below them, then tiles of keys gather dk and dv from the queries above them, head by head of their group: each
sum has one owner and one order. p and ds are rounded to bf16 before they are multiplied, sums are fp32, each gradient
is rounded once.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .attention_splits import power_of_2
from .hopper_attention import matrix
from .hopper_rows import advance, zero_past

LOG2_E = 1.4426950408889634


@gluon.jit
def _owner(cu_seqlens, sequences, slot, SEQUENCES: gl.constexpr, TILE: gl.constexpr):
    """Start and length of the sequence that owns a slot, and the slot's first token in it; past its end when empty."""
    index = gl.arange(0, SEQUENCES, gl.BlockedLayout([1], [32], [4], [0]))
    begin = gl.load(cu_seqlens + index, mask=index < sequences, other=0)
    sequence = gl.max(gl.where((index < sequences) & (begin // TILE + index <= slot), index, 0), 0)
    start = gl.load(cu_seqlens + sequence)
    return start, gl.load(cu_seqlens + sequence + 1) - start, (slot - start // TILE - sequence) * TILE


@gluon.jit
def _probabilities(scores, offset, LOG2_SCALE: gl.constexpr):
    scale = gl.full(scores.shape, LOG2_SCALE, gl.float32, scores.type.layout)
    return gl.exp2(gl.fma(scores, scale, offset.broadcast_to(scores.shape)))


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
def _query_rows(q, out, grad, lse, delta, dq, q_tile, grad_tile, ring, place, q_token, q_head, HALF: gl.constexpr,
                HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
                HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    start, length, tile, blocks, kv_head, pitch = place
    k_tiles, v_tiles, full, empty = ring
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
    gl.store(delta + head.to(gl.int64) * pitch + start + token, deltas, mask=valid)
    lses = gl.load(lse + head.to(gl.int64) * pitch + start + token, mask=valid, other=0.0)
    offset = gl.expand_dims(-gl.convert_layout(lses, row_layout), 1)
    deltas = gl.expand_dims(gl.convert_layout(deltas, row_layout), 1)
    position = tile + gl.arange(0, 64, row_layout) // GROUP

    sums = gl.zeros([64, HEAD_DIM], gl.float32, dq_layout)
    slot = 0
    phase = 0
    for block in range(blocks):
        mbarrier.wait(full.index(slot), phase)
        if (block + 1) * BLOCK > length:
            zero_past(k_tiles.index(slot), length - block * BLOCK, wide)
            zero_past(v_tiles.index(slot), length - block * BLOCK, wide)
        zeros = gl.zeros([64, BLOCK], gl.float32, layout)
        scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
        products = warpgroup_mma(grad_tile, v_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
        scores, products = warpgroup_mma_wait(0, deps=(scores, products))
        p = _probabilities(scores, offset, LOG2_SCALE)
        if (block + 1) * BLOCK > tile:
            key = block * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, layout))
            p = gl.where(key[None, :] <= position[:, None], p, 0.0)
        ds = (p * (products - deltas)).to(gl.bfloat16)
        sums = warpgroup_mma(gl.convert_layout(ds, gl.DotOperandLayout(0, dq_layout, 2)), k_tiles.index(slot), sums,
                             is_async=True)  # fmt: skip
        sums = warpgroup_mma_wait(0, deps=(sums,))
        mbarrier.arrive(empty.index(slot))
        slot, phase = advance(slot, phase, STAGES)
    q_tile.store((sums * SCALE).to(gl.bfloat16))
    gl.store(dq + rows, q_tile.load(wide), mask=valid[:, None])


@gluon.jit(do_not_specialize=["sequences", "pitch", "q_token", "q_head", "k_row", "k_column", "v_row", "v_column"])
def _attention_dq_kernel(q, k, v, out, grad, lse, delta, dq, cu_seqlens, sequences, pitch, q_token, q_head, k_row,
                         k_column, v_row, v_column, HEADS: gl.constexpr, GROUP: gl.constexpr, SEQUENCES: gl.constexpr,
                         SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr,
                         STAGES: gl.constexpr):  # fmt: skip
    """dq, and delta [q_heads, pitch], of 128 rows: the query heads of a key head for consecutive tokens."""
    tile_tokens: gl.constexpr = 64 // GROUP * 2
    slot = gl.num_programs(0) - 1 - gl.program_id(0)  # long rows first
    kv_head = gl.program_id(1)
    start, length, tile = _owner(cu_seqlens, sequences, slot, SEQUENCES, tile_tokens)
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
        place = (start, length, tile, blocks, kv_head, pitch)
        k_step = (kv_head * k_row, kv_head * k_column)
        v_step = (kv_head * v_row, kv_head * v_column)
        gl.warp_specialize(
            [
                (_query_rows, (q, out, grad, lse, delta, dq, q_tiles.index(0), grad_tiles.index(0), ring, place,
                               q_token * 8, q_head * 8, 0, HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, BLOCK, STAGES)),
                (_query_rows, (q, out, grad, lse, delta, dq, q_tiles.index(1), grad_tiles.index(1), ring, place,
                               q_token * 8, q_head * 8, 1, HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, BLOCK, STAGES)),
                (_copy_keys, (k, v, ring, start, blocks, k_step, v_step, BLOCK, HEAD_DIM, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


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
def _key_rows(lse, delta, dk, dv, ring, k_tile, v_tile, held, span, length, pitch, HALF: gl.constexpr,
              KEY_HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
              HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, WANT_K: gl.constexpr, WANT_V: gl.constexpr):  # fmt: skip
    """dk, dv or both of 64 keys; each warpgroup owns its keys, or one gradient of them."""
    start, first, kv_head, edge, blocks = span
    q_tiles, grad_tiles, full, empty = ring
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
        offset = -gl.load(lse + row, mask=token < length, other=0.0)
        if WANT_K:
            deltas = gl.load(delta + row, mask=token < length, other=0.0)
        mbarrier.wait(full.index(slot), phase)
        if query + 64 > length:
            zero_past(q_tiles.index(slot), length - query, wide)
            zero_past(grad_tiles.index(slot), length - query, wide)
        scores = warpgroup_mma(k_tile, q_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)
        if WANT_K:
            grads = grad_tiles.index(slot).permute((1, 0))
            products = warpgroup_mma(v_tile, grads, zeros, use_acc=False, is_async=True)
            products = warpgroup_mma_wait(0, deps=(products,))
        scores = warpgroup_mma_wait(0, deps=(scores,))
        p = _probabilities(scores, gl.expand_dims(offset, 0), LOG2_SCALE)
        if query < first + 64:
            p = gl.where(key[:, None] <= token[None, :], p, 0.0)
        values = gl.convert_layout(p.to(gl.bfloat16), operand)
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
def _attention_dkdv_kernel(q, grad, k, v, lse, delta, dk, dv, cu_seqlens, sequences, pitch, q_row, q_column, k_row,
                           k_column, v_row, v_column, KEY_HEADS: gl.constexpr, GROUP: gl.constexpr,
                           SEQUENCES: gl.constexpr, SCALE: gl.constexpr, LOG2_SCALE: gl.constexpr,
                           HEAD_DIM: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """dk and dv of 128 keys of a key head; of 64 where one warpgroup can hold only one of the two."""
    kv_head = gl.program_id(1)
    start, length, first = _owner(cu_seqlens, sequences, gl.program_id(0), SEQUENCES, KEYS)
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
        ring = (q_tiles, grad_tiles, full, empty)
        span = (start, first, kv_head, edge, blocks)
        half: gl.constexpr = KEYS // 128
        gl.warp_specialize(
            [
                (_key_rows, (lse, delta, dk, dv, ring, k_tile.slice(0, 64), v_tile.slice(0, 64), held, span, length,
                             pitch, 0, KEY_HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, STAGES, KEYS == 128, True)),
                (_key_rows, (lse, delta, dk, dv, ring, k_tile.slice(half * 64, 64), v_tile.slice(half * 64, 64), held,
                             span, length, pitch, half, KEY_HEADS, GROUP, SCALE, LOG2_SCALE, HEAD_DIM, STAGES, True,
                             KEYS == 128)),
                (_copy_queries, (q, grad, k, v, ring, k_tile, v_tile, held, span, (q_row, q_column),
                                 (kv_head * k_row, kv_head * k_column), (kv_head * v_row, kv_head * v_column), KEYS,
                                 GROUP, HEAD_DIM, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def hopper_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `attention_backward`, for what `fits`."""
    tokens, heads, width = q.shape
    kv_heads, sequences = k.shape[1], cu_seqlens.shape[0] - 1
    group = heads // kv_heads
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    grad, delta = grad.contiguous(), torch.empty_like(lse)
    common = {
        "GROUP": group, "SEQUENCES": power_of_2(sequences), "SCALE": scale, "LOG2_SCALE": scale * LOG2_E,
        "HEAD_DIM": width, "num_warps": 4, "maxnreg": 168, "enable_fp_fusion": False,
    }  # fmt: skip
    block, stages = (32, 2) if width > 128 else (64, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, block), matrix(v, block)
    _attention_dq_kernel[(tokens // (64 // group * 2) + sequences, kv_heads)](
        q, k_matrix, v_matrix, out, grad, lse, delta, dq, cu_seqlens, sequences, tokens, q.stride(0) // 8,
        q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads, BLOCK=block, STAGES=stages, **common,
    )  # fmt: skip
    keys, stages = (64, 2) if width > 128 else (128, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, keys), matrix(v, keys)
    (q_matrix, _, *q_steps), (grad_matrix, *_) = matrix(q, 64), matrix(grad, 64)
    _attention_dkdv_kernel[(tokens // keys + sequences, kv_heads)](
        q_matrix, grad_matrix, k_matrix, v_matrix, lse, delta, dk, dv, cu_seqlens, sequences, tokens, *q_steps,
        *k_steps, *v_steps, KEY_HEADS=kv_heads, KEYS=keys, STAGES=stages, **common,
    )  # fmt: skip
    return dq, dk, dv
