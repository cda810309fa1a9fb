# SPDX-License-Identifier: Apache-2.0
"""Causal attention in blocks and splits of keys at absolute positions: one tile of rows a program, any number of rows.

A tile holds the query heads of one key head for consecutive tokens. Its splits are walked in order, or shared out over
programs and merged by a second kernel: the same expression, so the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .attention_splits import combine, finite, merge, normalise, power_of_2, sequence_slots, share


@triton.jit
def _halve(x, COLUMNS: tl.constexpr):
    """Add the right half of the columns to the left half until COLUMNS are left: an order no layout can change."""
    for _ in tl.static_range(16):
        if x.shape[1] > COLUMNS:
            left, right = tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))
            x = left + right
    return x


@triton.jit
def _pages(table, first, kv_length, KV_BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """The page of each key of a block; a key past kv_length has none and gives page 0."""
    key = first + tl.arange(0, KV_BLOCK)
    return tl.load(table + key // PAGE, mask=key < kv_length, other=0) if PAGE else key


@triton.jit
def _fold_block(q, k, v, pages, first, kv_length, position, k_page, k_token, v_page, v_token, top, total, acc,
                SCALE: tl.constexpr, KV_BLOCK: tl.constexpr, PAGE: tl.constexpr, EDGE: tl.constexpr):  # fmt: skip
    """One block of keys into the running maximum, the eight running sums and the accumulator of each row.

    EDGE: the block holds keys that some row must not see. Keys past kv_length are not read: a stale page may hold NaN.
    """
    key = first + tl.arange(0, KV_BLOCK)
    known = key < kv_length
    if PAGE:
        k_row = pages.to(tl.int64) * k_page + (key % PAGE) * k_token
        v_row = pages.to(tl.int64) * v_page + (key % PAGE) * v_token
    else:
        k_row = key.to(tl.int64) * k_token
        v_row = key.to(tl.int64) * v_token
    column = tl.arange(0, q.shape[1])[None, :]
    if EDGE:
        k_tile = tl.load(k + k_row[:, None] + column, mask=known[:, None], other=0.0)
        v_tile = tl.load(v + v_row[:, None] + column, mask=known[:, None], other=0.0)
    else:
        k_tile = tl.load(k + k_row[:, None] + column)
        v_tile = tl.load(v + v_row[:, None] + column)
    scores = tl.dot(q, tl.trans(k_tile))
    if EDGE:
        scores = tl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1) * SCALE)
    base = finite(new_top) if EDGE else new_top
    shrink = tl.exp2(top - base)
    p = tl.exp2(tl.fma(scores, tl.full(scores.shape, SCALE, tl.float32), tl.broadcast_to(-base[:, None], scores.shape)))
    total = total * shrink[:, None] + _halve(p, 8)
    acc = tl.dot(p.to(tl.bfloat16), v_tile, acc * shrink[:, None])
    return new_top, total, acc


@triton.jit(do_not_specialize=["sequences", "tokens", "table_row", "q_token", "q_head", "k_page", "k_token", "k_head",
                               "v_page", "v_token", "v_head"])  # fmt: skip
def _attention_kernel(q, k, v, out, lse, tops, totals, accs, query_start, seq_lens, block_table, sequences, tokens,
                      table_row, q_token, q_head, k_page, k_token, k_head, v_page, v_token, v_head,
                      SCALE: tl.constexpr, KV_BLOCK: tl.constexpr, SPLIT_BLOCKS: tl.constexpr, HEADS: tl.constexpr,
                      GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr, SEQUENCES: tl.constexpr,
                      BLOCK_M: tl.constexpr, SHARED: tl.constexpr, LSE: tl.constexpr):  # fmt: skip
    """One tile of BLOCK_M rows (tokens x the query heads of one key head), its splits in order or, SHARED, one in n.

    Strides are in units of 8 elements: 16-byte loads without specialising on them.
    """
    tile_tokens: tl.constexpr = BLOCK_M // GROUP
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    kv_head = tl.program_id(1)
    index = tl.arange(0, SEQUENCES)
    begin = tl.load(query_start + index, mask=index < sequences, other=0)
    sequence = tl.max(tl.where((index < sequences) & (begin // tile_tokens + index <= slot), index, 0), 0)
    start = tl.load(query_start + sequence)
    queries = tl.load(query_start + sequence + 1) - start
    tile = (slot - start // tile_tokens - sequence) * tile_tokens
    if tile >= queries:
        return
    context = tl.load(seq_lens + sequence) - queries if PAGE else 0
    row = tl.arange(0, BLOCK_M)
    token = tile + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = (row < tile_tokens * GROUP) & (token < queries)
    position = context + token
    kv_length = context + tl.minimum(tile + tile_tokens, queries)
    blocks = tl.cdiv(kv_length, KV_BLOCK)
    whole = (context + tile + 1) // KV_BLOCK  # blocks that every row of the tile sees whole

    column = tl.arange(0, HEAD_DIM)[None, :]
    q_row = (start + token).to(tl.int64) * (q_token * 8) + head * (q_head * 8)
    q_tile = tl.load(q + q_row[:, None] + column, mask=valid[:, None], other=0.0)
    k += kv_head * (k_head * 8)
    v += kv_head * (v_head * 8)
    if not PAGE:
        k += start.to(tl.int64) * (k_token * 8)
        v += start.to(tl.int64) * (v_token * 8)
    table = block_table + sequence.to(tl.int64) * table_row
    out_row = (start + token).to(tl.int64) * HEADS + head

    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for split in range(tl.program_id(2), tl.cdiv(blocks, SPLIT_BLOCKS), tl.num_programs(2)):
        low = split * SPLIT_BLOCKS
        high = tl.minimum(low + SPLIT_BLOCKS, blocks)
        s_top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        s_total = tl.zeros((BLOCK_M, 8), tl.float32)
        s_acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
        pages = _pages(table, low * KV_BLOCK, kv_length, KV_BLOCK, PAGE)  # one block ahead of the loads that need them
        if BLOCK_M > 16:
            for block in range(low, tl.minimum(high, whole)):
                ahead = _pages(table, (block + 1) * KV_BLOCK, kv_length, KV_BLOCK, PAGE)
                s_top, s_total, s_acc = _fold_block(
                    q_tile, k, v, pages, block * KV_BLOCK, kv_length, position, k_page * 8, k_token * 8, v_page * 8,
                    v_token * 8, s_top, s_total, s_acc, SCALE, KV_BLOCK, PAGE, False)  # fmt: skip
                pages = ahead
            low = tl.maximum(low, whole)
        for block in range(low, high):
            ahead = _pages(table, (block + 1) * KV_BLOCK, kv_length, KV_BLOCK, PAGE)
            s_top, s_total, s_acc = _fold_block(
                q_tile, k, v, pages, block * KV_BLOCK, kv_length, position, k_page * 8, k_token * 8, v_page * 8,
                v_token * 8, s_top, s_total, s_acc, SCALE, KV_BLOCK, PAGE, True)  # fmt: skip
            pages = ahead
        even, odd = tl.split(tl.reshape(s_total, (BLOCK_M, 4, 2)))
        s_sum = tl.reshape(_halve(even + odd, 1), (BLOCK_M,))
        if SHARED:
            part = split.to(tl.int64) * tokens * HEADS + out_row
            tl.store(tops + part, s_top, mask=valid)
            tl.store(totals + part, s_sum, mask=valid)
            tl.store(accs + part[:, None] * HEAD_DIM + column, s_acc, mask=valid[:, None])
        else:
            top, total, acc = merge(top, total, acc, s_top, s_sum, s_acc)
    if not SHARED:
        tl.store(out + out_row[:, None] * HEAD_DIM + column, normalise(total, acc), mask=valid[:, None])
        if LSE:
            tl.store(lse + head.to(tl.int64) * tokens + start + token, top + tl.log2(total), mask=valid)


def attention_tiles(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    log2_scale: float,
    kv_block: int,
    split: int,
    max_query: int,
    launch: Mapping[str, int],
) -> None:
    """Fills out [T, q_heads, D] and, if asked, lse [q_heads, T] with log2 of a row's sum of exp2(log2_scale * scores).

    k and v are [T, kv_heads, D], then seq_lens and block_table are not read, or pages [pages, page, kv_heads, D].
    """
    tokens, heads, width = q.shape
    kv_heads, sequences = k.shape[-2], query_start.shape[0] - 1
    page, k_page, v_page = (k.shape[1], k.stride(0), v.stride(0)) if k.dim() == 4 else (0, 0, 0)
    group = heads // kv_heads
    block_m = max(launch["block_m"], power_of_2(group))
    slots, ctas, parts = share(q, kv_heads, sequences, block_m // group, block_table.shape[-1] * page, split, max_query,
                               launch["programs"])  # fmt: skip
    _attention_kernel[(slots, kv_heads, ctas)](
        q, k, v, out, parts[0] if lse is None else lse, *parts, query_start, seq_lens, block_table, sequences, tokens,
        block_table.stride(0), q.stride(0) // 8, q.stride(1) // 8, k_page // 8, k.stride(-3) // 8, k.stride(-2) // 8,
        v_page // 8, v.stride(-3) // 8, v.stride(-2) // 8, SCALE=log2_scale, KV_BLOCK=kv_block,
        SPLIT_BLOCKS=split // kv_block, HEADS=heads, GROUP=group, HEAD_DIM=width, PAGE=page,
        SEQUENCES=sequence_slots(sequences), BLOCK_M=block_m, SHARED=ctas > 1, LSE=lse is not None,
        num_warps=launch["num_warps"], num_stages=launch["num_stages"], enable_fp_fusion=False,
    )  # fmt: skip
    if ctas > 1:
        combine(parts, out, query_start, seq_lens, kv_heads, split)
