# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised causal attention for Hopper: the arithmetic of `attention_tiles`, in the same order.

One producer warp copies blocks of keys and values with the tensor memory accelerator; one or two warpgroups own 64 rows
each. A warpgroup multiplies the scores of a block while the values of the block before are still being accumulated, and
takes the exponentials of one product under the other (Shah et al., 2024).
"""

from __future__ import annotations

from collections.abc import Mapping

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .attention_splits import combine, share


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
    wrap = slot + 1 == STAGES
    return gl.where(wrap, 0, slot + 1), gl.where(wrap, phase ^ 1, phase)


@gluon.jit
def _block(index, first, step, SPLIT_BLOCKS: gl.constexpr):
    """The index-th block of a program that owns the splits first, first + step, ..."""
    return (index // SPLIT_BLOCKS * step + first) * SPLIT_BLOCKS + index % SPLIT_BLOCKS


@gluon.jit
def _share(blocks, first, step, SPLIT_BLOCKS: gl.constexpr):
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
def _finite(top):
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def _copy(k, v, ring, table, start, keys, count, first, step, k_step, v_step, PAGE: gl.constexpr, CHUNK: gl.constexpr,
          KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = ring
    k_page, k_row, k_column = k_step
    v_page, v_row, v_column = v_step
    slot = 0
    phase = 0
    for index in range(count):
        key = _block(index, first, step, SPLIT_BLOCKS) * KV_BLOCK
        mbarrier.wait(k_empty.index(slot), phase ^ 1)
        mbarrier.expect(k_full.index(slot), KV_BLOCK * k_tiles.shape[2] * 2)
        for part in gl.static_range(0, KV_BLOCK, CHUNK):
            row = start + key + part
            if PAGE:  # past the last key: any page that exists
                row = gl.load(table + gl.minimum(key + part, keys - 1) // PAGE) * k_page + (key + part) % PAGE
            tma.async_copy_global_to_shared(k, [row + k_row, k_column], k_full.index(slot),
                                            k_tiles.index(slot).slice(part, CHUNK))  # fmt: skip
        mbarrier.wait(v_empty.index(slot), phase ^ 1)
        mbarrier.expect(v_full.index(slot), KV_BLOCK * v_tiles.shape[2] * 2)
        for part in gl.static_range(0, KV_BLOCK, CHUNK):
            row = start + key + part
            if PAGE:
                row = gl.load(table + gl.minimum(key + part, keys - 1) // PAGE) * v_page + (key + part) % PAGE
            tma.async_copy_global_to_shared(v, [row + v_row, v_column], v_full.index(slot),
                                            v_tiles.index(slot).slice(part, CHUNK))  # fmt: skip
        slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _exponentials(scores, position, first, top, total, SCALE: gl.constexpr, EDGE: gl.constexpr, layout: gl.constexpr):
    if EDGE:
        key = first + gl.arange(0, scores.shape[1], gl.SliceLayout(0, layout))
        scores = gl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * SCALE)
    base = _finite(new_top) if EDGE else new_top
    shrink = gl.exp2(top - base)
    offset = gl.expand_dims(-base, 1).broadcast_to(scores.shape)
    p = gl.exp2(gl.fma(scores, gl.full(scores.shape, SCALE, gl.float32, layout), offset))
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
def _finish_split(merged, parts, split, s_top, s_total, s_acc, tile, queries, start, tokens, kv_head,
                  HEADS: gl.constexpr, GROUP: gl.constexpr, SHARED: gl.constexpr):  # fmt: skip
    """Merges a split into the rows' result or, where splits are shared out, leaves it for the combine kernel."""
    row_layout: gl.constexpr = s_top.type.layout
    s_sum = _row_sum(s_total, row_layout)
    if SHARED:
        tops, totals, accs = parts
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
    else:
        return _merge(merged, s_top, s_sum, s_acc)


@gluon.jit
def _step(q_tile, ring, slot, phase, before, position, first_key, new_split, split, p, s_top, s_total, s_acc, merged, parts,
          tile, queries, start, tokens, kv_head, HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr,
          KV_BLOCK: gl.constexpr, SHARED: gl.constexpr, EDGE: gl.constexpr):  # fmt: skip
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
        merged = _finish_split(merged, parts, split, s_top, s_total, s_acc, tile, queries, start, tokens, kv_head, HEADS,
                               GROUP, SHARED)  # fmt: skip
    return p.to(gl.bfloat16), new_top, new_total, _scaled(s_acc, shrink), merged


@gluon.jit
def _multiply(q, out, lse, parts, q_tile, ring, start, queries, tile, keys, count, first, step, kv_head, tokens, q_token,
              q_head, HALF: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr, SCALE: gl.constexpr,
              KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
              SHARED: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KV_BLOCK, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0])
    tile_tokens: gl.constexpr = 64 // GROUP
    tile += HALF * tile_tokens

    row = gl.arange(0, 64, gl.SliceLayout(1, wide))
    token = tile + row // GROUP
    head = kv_head * GROUP + row % GROUP
    valid = ((row < tile_tokens * GROUP) & (token < queries))[:, None]
    column = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, wide))[None, :]
    q_rows = (start + token).to(gl.int64) * q_token + head * q_head
    q_tile.store(gl.load(q + q_rows[:, None] + column, mask=valid, other=0.0))
    fence_async_shared()

    position = keys - queries + tile + gl.arange(0, 64, row_layout) // GROUP
    whole = _share((keys - queries + tile + 1) // KV_BLOCK, first, step, SPLIT_BLOCKS)
    s_top = gl.full([64], float("-inf"), gl.float32, row_layout)
    s_total = gl.zeros([64, 8], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
    s_acc = gl.zeros([64, HEAD_DIM], gl.float32, acc_layout)
    merged = (s_top, gl.zeros([64], gl.float32, row_layout), s_acc)

    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = ring
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
    slot, phase = _next(0, 0, STAGES)
    for index in range(1, gl.minimum(whole, count)):
        p, s_top, s_total, s_acc, merged = _step(
            q_tile, ring, slot, phase, before, position, 0, index % SPLIT_BLOCKS == 0,
            _block(index - 1, first, step, SPLIT_BLOCKS) // SPLIT_BLOCKS, p, s_top, s_total, s_acc, merged, parts, tile,
            queries, start, tokens, kv_head, HEADS, GROUP, SCALE, KV_BLOCK, SHARED, False)  # fmt: skip
        before = slot
        slot, phase = _next(slot, phase, STAGES)
    for index in range(gl.maximum(whole, 1), count):
        p, s_top, s_total, s_acc, merged = _step(
            q_tile, ring, slot, phase, before, position, _block(index, first, step, SPLIT_BLOCKS) * KV_BLOCK,
            index % SPLIT_BLOCKS == 0, _block(index - 1, first, step, SPLIT_BLOCKS) // SPLIT_BLOCKS, p, s_top, s_total,
            s_acc, merged, parts, tile, queries, start, tokens, kv_head, HEADS, GROUP, SCALE, KV_BLOCK, SHARED,
            True)  # fmt: skip
        before = slot
        slot, phase = _next(slot, phase, STAGES)

    last = _block(count - 1, first, step, SPLIT_BLOCKS)
    values = v_tiles.index(before)
    if (last + 1) * KV_BLOCK > keys:  # rows past the keys of the sequence may hold NaN, and 0 * NaN is NaN
        key = last * KV_BLOCK + gl.arange(0, KV_BLOCK, gl.SliceLayout(1, wide))
        values.store(gl.where(key[:, None] < keys, values.load(wide), 0.0))
        fence_async_shared()
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), values, s_acc, is_async=True)
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    merged = _finish_split(merged, parts, last // SPLIT_BLOCKS, s_top, s_total, s_acc, tile, queries, start, tokens,
                           kv_head, HEADS, GROUP, SHARED)  # fmt: skip
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


@gluon.jit(do_not_specialize=["sequences", "tokens", "table_row", "q_token", "q_head", "k_page", "k_row", "k_column",
                              "v_page", "v_row", "v_column"])  # fmt: skip
def _hopper_attention_kernel(q, k, v, out, lse, tops, totals, accs, query_start, seq_lens, block_table, sequences,
                             tokens, table_row, q_token, q_head, k_page, k_row, k_column, v_page, v_row, v_column,
                             HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr, CHUNK: gl.constexpr,
                             SEQUENCES: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr,
                             SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                             STAGES: gl.constexpr, SHARED: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    tile_tokens: gl.constexpr = 64 // GROUP * CONSUMERS
    slot = gl.num_programs(0) - 1 - gl.program_id(0)  # long rows first
    kv_head = gl.program_id(1)
    first = gl.program_id(2)
    step = gl.num_programs(2)
    index = gl.arange(0, SEQUENCES, gl.BlockedLayout([1], [32], [4], [0]))
    begin = gl.load(query_start + index, mask=index < sequences, other=0)
    sequence = gl.max(gl.where((index < sequences) & (begin // tile_tokens + index <= slot), index, 0), 0)
    start = gl.load(query_start + sequence)
    queries = gl.load(query_start + sequence + 1) - start
    tile = (slot - start // tile_tokens - sequence) * tile_tokens
    keys = gl.load(seq_lens + sequence) if PAGE else queries
    blocks = (keys - queries + gl.minimum(tile + tile_tokens, queries) + KV_BLOCK - 1) // KV_BLOCK
    if (tile < queries) & (first * SPLIT_BLOCKS < blocks):
        count = _share(blocks, first, step, SPLIT_BLOCKS)
        q_tiles = gl.allocate_shared_memory(gl.bfloat16, [CONSUMERS, 64, HEAD_DIM], gl.NVMMASharedLayout(128, 16, 2))
        k_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], k.layout)
        v_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], v.layout)
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_full.index(stage), count=1)
            mbarrier.init(v_full.index(stage), count=1)
            mbarrier.init(k_empty.index(stage), count=CONSUMERS)
            mbarrier.init(v_empty.index(stage), count=CONSUMERS)
        ring = (k_tiles, v_tiles, k_full, k_empty, v_full, v_empty)
        parts = (tops, totals, accs)
        table = block_table + sequence.to(gl.int64) * table_row
        k_step = (k_page, kv_head * k_row, kv_head * k_column)
        v_step = (v_page, kv_head * v_row, kv_head * v_column)
        if CONSUMERS == 1:
            gl.warp_specialize(
                [
                    (_multiply, (q, out, lse, parts, q_tiles.index(0), ring, start, queries, tile, keys, count, first, step,
                             kv_head, tokens, q_token * 8, q_head * 8, 0, HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                             HEAD_DIM, STAGES, SHARED, LSE)),
                    (_copy, (k, v, ring, table, start, keys, count, first, step, k_step, v_step, PAGE, CHUNK, KV_BLOCK,
                         SPLIT_BLOCKS, STAGES)),
                ],
                [1],
                [24],
            )  # fmt: skip
        else:
            gl.warp_specialize(
                [
                    (_multiply, (q, out, lse, parts, q_tiles.index(0), ring, start, queries, tile, keys, count, first, step,
                             kv_head, tokens, q_token * 8, q_head * 8, 0, HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                             HEAD_DIM, STAGES, SHARED, LSE)),
                    (_multiply, (q, out, lse, parts, q_tiles.index(1), ring, start, queries, tile, keys, count, first, step,
                             kv_head, tokens, q_token * 8, q_head * 8, 1, HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                             HEAD_DIM, STAGES, SHARED, LSE)),
                    (_copy, (k, v, ring, table, start, keys, count, first, step, k_step, v_step, PAGE, CHUNK, KV_BLOCK,
                         SPLIT_BLOCKS, STAGES)),
                ],
                [4, 1],
                [240, 24],
            )  # fmt: skip


def fits(q: torch.Tensor, *caches: torch.Tensor) -> bool:
    """Whether `hopper_attention` takes these heads, and pages and heads that lie whole rows apart or inside a row."""
    group, width = q.shape[1] // caches[0].shape[-2], q.shape[2]
    regular = (
        (x.dim() == 3 or x.stride(0) % x.stride(-3) == 0)
        and (x.stride(-2) % x.stride(-3) == 0 or x.stride(-2) < x.stride(-3))
        for x in caches
    )
    return group <= 64 and width >= 64 and all(regular)


def _matrix(x: torch.Tensor, chunk: int) -> tuple[TensorDescriptor, int, int, int]:
    """Keys or values as one matrix whose rows are a token's stride apart.

    Returns the matrix, the rows between pages, and the rows and columns between heads.
    """
    token, head = x.stride(-3), x.stride(-2)
    page = x.stride(0) if x.dim() == 4 else 0
    rows = head // token if head >= token else 0
    columns = 0 if rows else head
    heads, width = x.shape[-2:]
    height = (x.shape[0] - 1) * (page // token) + x.shape[1] if page else x.shape[0]
    shape = [height + (heads - 1) * rows, (heads - 1) * columns + width]
    layout = gl.NVMMASharedLayout(128, 16, 2)
    return TensorDescriptor(x, shape, [token, 1], [chunk, width], layout), page // token, rows, columns


def hopper_attention(
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
    """As `attention_tiles`, for what `fits`; block_m is 64 or 128, one or two warpgroups."""
    tokens, heads, width = q.shape
    kv_heads, sequences = k.shape[-2], query_start.shape[0] - 1
    group = heads // kv_heads
    page = k.shape[1] if k.dim() == 4 else 0
    chunk = min(kv_block, page & -page) if page else kv_block
    k_matrix, *k_steps = _matrix(k, chunk)
    v_matrix, *v_steps = _matrix(v, chunk)
    consumers = launch["block_m"] // 64
    slots, ctas, parts = share(q, kv_heads, sequences, 64 // group * consumers, block_table.shape[-1] * page, split,
                               max_query, launch["programs"])  # fmt: skip
    # Registers a thread at entry, before the warps share them out anew: one warpgroup leaves room for a second program.
    registers = 168 if consumers == 2 else 128 if width <= 128 else 240
    _hopper_attention_kernel[(slots, kv_heads, ctas)](
        q, k_matrix, v_matrix, out, parts[0] if lse is None else lse, *parts, query_start, seq_lens, block_table,
        sequences, tokens, block_table.stride(0), q.stride(0) // 8, q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads,
        GROUP=group, PAGE=page, CHUNK=chunk, SEQUENCES=1 << (sequences - 1).bit_length(), SCALE=log2_scale,
        KV_BLOCK=kv_block, SPLIT_BLOCKS=split // kv_block, HEAD_DIM=width, CONSUMERS=consumers,
        STAGES=launch["num_stages"], SHARED=ctas > 1, LSE=lse is not None, num_warps=4,
        maxnreg=registers, enable_fp_fusion=False,
    )  # fmt: skip
    if ctas > 1:
        combine(parts, out, query_start, seq_lens, kv_heads, split)
