# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised causal attention for Hopper, for tiles of many rows: the arithmetic of `attention_blocks`.

One producer warp copies blocks of keys and values with the tensor memory accelerator; two warpgroups own 64 rows each.
A warpgroup multiplies the scores of a block while the values of the block before are still being accumulated, and takes
the exponentials of one product under the other (Shah et al., 2024). The order of every sum is that of the plain kernel.
"""

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

ROWS = 128  # of one program: two warpgroups of 64
SHARED_BYTES = 226 << 10


@gluon.jit
def _next(slot, phase, STAGES: gl.constexpr):
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
def _finite(top):
    return gl.where(top == float("-inf"), 0.0, top)


@gluon.jit
def _copy(k, v, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, table, start, blocks, k_page, k_row, k_column,
          v_page, v_row, v_column, PAGE: gl.constexpr, CHUNK: gl.constexpr, KV_BLOCK: gl.constexpr,
          HEAD_DIM: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    slot = 0
    phase = 0
    for block in range(blocks):
        mbarrier.wait(k_empty.index(slot), phase ^ 1)
        mbarrier.expect(k_full.index(slot), KV_BLOCK * HEAD_DIM * 2)
        for part in gl.static_range(KV_BLOCK // CHUNK):
            key = block * KV_BLOCK + part * CHUNK
            row = gl.load(table + key // PAGE) * k_page + key % PAGE if PAGE else start + key
            tma.async_copy_global_to_shared(k, [row + k_row, k_column], k_full.index(slot),
                                            k_tiles.index(slot).slice(part * CHUNK, CHUNK))  # fmt: skip
        mbarrier.wait(v_empty.index(slot), phase ^ 1)
        mbarrier.expect(v_full.index(slot), KV_BLOCK * HEAD_DIM * 2)
        for part in gl.static_range(KV_BLOCK // CHUNK):
            key = block * KV_BLOCK + part * CHUNK
            row = gl.load(table + key // PAGE) * v_page + key % PAGE if PAGE else start + key
            tma.async_copy_global_to_shared(v, [row + v_row, v_column], v_full.index(slot),
                                            v_tiles.index(slot).slice(part * CHUNK, CHUNK))  # fmt: skip
        slot, phase = _next(slot, phase, STAGES)


@gluon.jit
def _exponentials(scores, position, block, top, total, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr, EDGE: gl.constexpr,
                  layout: gl.constexpr):  # fmt: skip
    if EDGE:
        key = block * KV_BLOCK + gl.arange(0, KV_BLOCK, gl.SliceLayout(0, layout))
        scores = gl.where(key[None, :] <= position[:, None], scores, float("-inf"))
    new_top = gl.maximum(top, gl.max(scores, 1) * SCALE)
    base = _finite(new_top) if EDGE else new_top
    shrink = gl.exp2(top - base)
    offset = gl.expand_dims(-base, 1).broadcast_to(64, KV_BLOCK)
    p = gl.exp2(gl.fma(scores, gl.full([64, KV_BLOCK], SCALE, gl.float32, layout), offset))
    total_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16])
    shrink_total = gl.convert_layout(shrink, gl.SliceLayout(1, total_layout), assert_trivial=True)
    total = total * shrink_total[:, None] + gl.convert_layout(_halve(p, 8), total_layout, assert_trivial=True)
    return p, new_top, total, shrink


@gluon.jit
def _merge(top, total, acc, split_top, split_total, split_acc, acc_layout: gl.constexpr):
    new_top = gl.maximum(top, split_top)
    base = _finite(new_top)
    old = gl.exp2(top - base)
    new = gl.exp2(split_top - base)
    rows: gl.constexpr = gl.SliceLayout(1, acc_layout)
    old_acc = gl.convert_layout(old, rows, assert_trivial=True)
    new_acc = gl.convert_layout(new, rows, assert_trivial=True)
    return new_top, total * old + split_total * new, acc * old_acc[:, None] + split_acc * new_acc[:, None]


@gluon.jit
def _row_sum(total, row_layout: gl.constexpr):
    whole_rows: gl.constexpr = gl.BlockedLayout([1, 8], [32, 1], [4, 1], [1, 0])
    return gl.convert_layout(gl.reshape(_halve(gl.convert_layout(total, whole_rows), 1), (64,)), row_layout)


@gluon.jit
def _step(q_tile, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, slot, phase, before, position, block,
          p, s_top, s_total, s_acc, top, total, acc, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr,
          SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr, EDGE: gl.constexpr):  # fmt: skip
    """Scores of `block` and, under its exponentials, the values of the block before; a new split merges the last."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KV_BLOCK, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    row_layout: gl.constexpr = gl.SliceLayout(1, layout)
    mbarrier.wait(k_full.index(slot), phase)
    scores = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), v_tiles.index(before), s_acc,
                          is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(1, deps=(scores,))
    mbarrier.arrive(k_empty.index(slot))
    new_split = block % SPLIT_BLOCKS == 0
    start_top = gl.where(new_split, float("-inf"), s_top)
    p, new_top, new_total, shrink = _exponentials(scores, position, block, start_top, s_total, SCALE, KV_BLOCK, EDGE,
                                                  layout)  # fmt: skip
    mbarrier.wait(v_full.index(slot), phase)  # here, so that no exponential is scheduled below the next line
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    mbarrier.arrive(v_empty.index(before))
    if new_split:
        top, total, acc = _merge(top, total, acc, s_top, _row_sum(s_total, row_layout), s_acc, acc_layout)
    s_acc = s_acc * gl.convert_layout(shrink, gl.SliceLayout(1, acc_layout), assert_trivial=True)[:, None]
    return p.to(gl.bfloat16), new_top, new_total, s_acc, top, total, acc


@gluon.jit
def _multiply(q, out, lse, q_tile, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, start, queries, tile, context,
              blocks, kv_head, tokens, q_token, q_head, HALF: gl.constexpr, HEADS: gl.constexpr, GROUP: gl.constexpr,
              SCALE: gl.constexpr, KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr,
              STAGES: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
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

    position = context + tile + gl.arange(0, 64, row_layout) // GROUP
    whole = (context + tile + 1) // KV_BLOCK
    top = gl.full([64], float("-inf"), gl.float32, row_layout)
    total = gl.zeros([64], gl.float32, row_layout)
    acc = gl.zeros([64, HEAD_DIM], gl.float32, acc_layout)
    s_total = gl.zeros([64, 8], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
    s_acc = acc

    mbarrier.wait(k_full.index(0), 0)
    scores = warpgroup_mma(q_tile, k_tiles.index(0).permute((1, 0)), gl.zeros([64, KV_BLOCK], gl.float32, layout),
                           use_acc=False, is_async=True)  # fmt: skip
    scores = warpgroup_mma_wait(0, deps=(scores,))
    mbarrier.arrive(k_empty.index(0))
    p, s_top, s_total, _ = _exponentials(scores, position, 0, top, s_total, SCALE, KV_BLOCK, True, layout)
    p = p.to(gl.bfloat16)
    mbarrier.wait(v_full.index(0), 0)
    before = 0
    slot, phase = _next(0, 0, STAGES)
    for block in range(1, gl.minimum(whole, blocks)):
        p, s_top, s_total, s_acc, top, total, acc = _step(
            q_tile, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, slot, phase, before, position, block, p,
            s_top, s_total, s_acc, top, total, acc, SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, False)  # fmt: skip
        before = slot
        slot, phase = _next(slot, phase, STAGES)
    for block in range(gl.maximum(whole, 1), blocks):
        p, s_top, s_total, s_acc, top, total, acc = _step(
            q_tile, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, slot, phase, before, position, block, p,
            s_top, s_total, s_acc, top, total, acc, SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, True)  # fmt: skip
        before = slot
        slot, phase = _next(slot, phase, STAGES)

    # The last block may hold rows past the keys of the sequence, and those may hold NaN: 0 * NaN is NaN.
    key = (blocks - 1) * KV_BLOCK + gl.arange(0, KV_BLOCK, gl.SliceLayout(1, wide))
    last = v_tiles.index(before)
    last.store(gl.where(key[:, None] < context + queries, last.load(wide), 0.0))
    fence_async_shared()
    s_acc = warpgroup_mma(gl.convert_layout(p, gl.DotOperandLayout(0, acc_layout, 2)), last, s_acc, is_async=True)
    s_acc = warpgroup_mma_wait(0, deps=(s_acc,))
    top, total, acc = _merge(top, total, acc, s_top, _row_sum(s_total, row_layout), s_acc, acc_layout)
    inverse = gl.convert_layout(gl.div_rn(1.0, total), gl.SliceLayout(1, acc_layout), assert_trivial=True)
    q_tile.store((acc * inverse[:, None] + 0.0).to(gl.bfloat16))
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
def _hopper_attention_kernel(q, k, v, out, lse, query_start, seq_lens, block_table, sequences, tokens, table_row,
                             q_token, q_head, k_page, k_row, k_column, v_page, v_row, v_column, HEADS: gl.constexpr,
                             GROUP: gl.constexpr, PAGE: gl.constexpr, SEQUENCES: gl.constexpr, SCALE: gl.constexpr,
                             KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr,
                             STAGES: gl.constexpr, CHUNK: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    tile_tokens: gl.constexpr = 64 // GROUP * 2
    slot = gl.num_programs(0) - 1 - gl.program_id(0)  # long rows first
    kv_head = gl.program_id(1)
    index = gl.arange(0, SEQUENCES, gl.BlockedLayout([1], [32], [4], [0]))
    begin = gl.load(query_start + index, mask=index < sequences, other=0)
    sequence = gl.max(gl.where((index < sequences) & (begin // tile_tokens + index <= slot), index, 0), 0)
    start = gl.load(query_start + sequence)
    queries = gl.load(query_start + sequence + 1) - start
    tile = (slot - start // tile_tokens - sequence) * tile_tokens
    if tile < queries:
        keys = gl.load(seq_lens + sequence) if PAGE else queries
        context = keys - queries
        blocks = (context + gl.minimum(tile + tile_tokens, queries) + KV_BLOCK - 1) // KV_BLOCK
        q_tiles = gl.allocate_shared_memory(gl.bfloat16, [2, 64, HEAD_DIM], gl.NVMMASharedLayout(128, 16, 2))
        k_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], k.layout)
        v_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], v.layout)
        k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for stage in gl.static_range(STAGES):
            mbarrier.init(k_full.index(stage), count=1)
            mbarrier.init(v_full.index(stage), count=1)
            mbarrier.init(k_empty.index(stage), count=2)
            mbarrier.init(v_empty.index(stage), count=2)
        table = block_table + sequence.to(gl.int64) * table_row
        gl.warp_specialize(
            [
                (_multiply, (q, out, lse, q_tiles.index(0), k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, start,
                             queries, tile, context, blocks, kv_head, tokens, q_token * 8, q_head * 8, 0, HEADS, GROUP,
                             SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, STAGES, LSE)),
                (_multiply, (q, out, lse, q_tiles.index(1), k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, start,
                             queries, tile, context, blocks, kv_head, tokens, q_token * 8, q_head * 8, 1, HEADS, GROUP,
                             SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, STAGES, LSE)),
                (_copy, (k, v, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, table, start, blocks, k_page,
                         kv_head * k_row, kv_head * k_column, v_page, kv_head * v_row, kv_head * v_column, PAGE,
                         CHUNK, KV_BLOCK, HEAD_DIM, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def _describe(x: torch.Tensor, chunk: int) -> tuple[TensorDescriptor, int, int, int]:
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


def fits(q: torch.Tensor, *caches: torch.Tensor) -> bool:
    """Whether `hopper_attention` takes these heads, and pages and heads that lie whole rows apart or inside a row."""
    group, width = q.shape[1] // caches[0].shape[-2], q.shape[2]
    regular = (
        (x.dim() == 3 or x.stride(0) % x.stride(-3) == 0)
        and (x.stride(-2) % x.stride(-3) == 0 or x.stride(-2) < x.stride(-3))
        for x in caches
    )
    return group <= 64 and width >= 64 and all(regular)


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
) -> None:
    """As `attention_tiles`, for what `fits`."""
    tokens, heads, width = q.shape
    group = heads // k.shape[-2]
    sequences = query_start.shape[0] - 1
    page = k.shape[1] if k.dim() == 4 else 0
    chunk = min(kv_block, page & -page) if page else kv_block
    k_matrix, *k_steps = _describe(k, chunk)
    v_matrix, *v_steps = _describe(v, chunk)
    stages = min(4, (SHARED_BYTES - ROWS * width * 2) // (kv_block * width * 4))
    _hopper_attention_kernel[(tokens // (64 // group * 2) + sequences, k.shape[-2])](
        q, k_matrix, v_matrix, out, out if lse is None else lse, query_start, seq_lens, block_table, sequences, tokens,
        block_table.stride(0), q.stride(0) // 8, q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads, GROUP=group,
        PAGE=page, SEQUENCES=1 << (sequences - 1).bit_length(), SCALE=log2_scale, KV_BLOCK=kv_block,
        SPLIT_BLOCKS=split // kv_block, HEAD_DIM=width, STAGES=stages, CHUNK=chunk, LSE=lse is not None, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
