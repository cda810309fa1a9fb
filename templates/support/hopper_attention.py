# SPDX-License-Identifier: Apache-2.0
"""Warp-specialised causal attention for Hopper: the arithmetic of `attention_tiles`, in the same order.

One producer warp copies blocks of keys and values with the tensor memory accelerator; one or two warpgroups own 64 rows
each (`hopper_rows`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .attention_splits import combine, sequence_slots, share
from .hopper_rows import advance, multiply, owner
from .hopper_splits import block_at, share_of

SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers


@gluon.jit
def _copy(k, v, ring, table, start, span, k_step, v_step, PAGE: gl.constexpr, CHUNK: gl.constexpr,
          KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    k_tiles, v_tiles, k_full, k_empty, v_full, v_empty = ring
    keys, count, first, step = span
    k_page, k_row, k_column = k_step
    v_page, v_row, v_column = v_step
    slot = 0
    phase = 0
    for index in range(count):
        key = block_at(index, first, step, SPLIT_BLOCKS) * KV_BLOCK
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
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit(do_not_specialize=["sequences", "tokens", "table_row", "q_token", "q_head", "k_page", "k_row", "k_column",
                              "v_page", "v_row", "v_column"])  # fmt: skip
def _hopper_attention_kernel(q, k, v, out, lse, tops, totals, accs, query_start, seq_lens, block_table, sequences,
                             tokens, table_row, q_token, q_head, k_page, k_row, k_column, v_page, v_row, v_column,
                             HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr, CHUNK: gl.constexpr,
                             SEQUENCES: gl.constexpr, SCALE: gl.constexpr, KV_BLOCK: gl.constexpr,
                             SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr, CONSUMERS: gl.constexpr,
                             STAGES: gl.constexpr, SHARED: gl.constexpr, LSE: gl.constexpr):  # fmt: skip
    tile_tokens: gl.constexpr = 64 // GROUP * CONSUMERS
    gdc_launch_dependents()
    gdc_wait()
    kv_heads: gl.constexpr = HEADS // GROUP
    slot = (gl.num_programs(0) - 1 - gl.program_id(0)) // kv_heads  # long rows first, of every head
    kv_head = gl.program_id(0) % kv_heads
    first = gl.program_id(1)
    step = gl.num_programs(1)
    sequence, start, queries, tile = owner(query_start, sequences, slot, SEQUENCES, tile_tokens)
    keys = gl.load(seq_lens + sequence) if PAGE else queries
    blocks = (keys - queries + gl.minimum(tile + tile_tokens, queries) + KV_BLOCK - 1) // KV_BLOCK
    if (tile < queries) & (first * SPLIT_BLOCKS < blocks):
        count = share_of(blocks, first, step, SPLIT_BLOCKS)
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
        place = (start, tokens, queries, tile, kv_head)
        span = (keys, count, first, step)
        table = block_table + sequence.to(gl.int64) * table_row
        k_step = (k_page, kv_head * k_row, kv_head * k_column)
        v_step = (v_page, kv_head * v_row, kv_head * v_column)
        if CONSUMERS == 1:
            gl.warp_specialize(
                [
                    (multiply, (q, out, lse, parts, q_tiles.index(0), ring, place, span, q_token * 8, q_head * 8, 0,
                                HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, STAGES, SHARED, LSE)),
                    (_copy, (k, v, ring, table, start, span, k_step, v_step, PAGE, CHUNK, KV_BLOCK, SPLIT_BLOCKS,
                             STAGES)),
                ],
                [1],
                [24],
            )  # fmt: skip
        else:
            gl.warp_specialize(
                [
                    (multiply, (q, out, lse, parts, q_tiles.index(0), ring, place, span, q_token * 8, q_head * 8, 0,
                                HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, STAGES, SHARED, LSE)),
                    (multiply, (q, out, lse, parts, q_tiles.index(1), ring, place, span, q_token * 8, q_head * 8, 1,
                                HEADS, GROUP, SCALE, KV_BLOCK, SPLIT_BLOCKS, HEAD_DIM, STAGES, SHARED, LSE)),
                    (_copy, (k, v, ring, table, start, span, k_step, v_step, PAGE, CHUNK, KV_BLOCK, SPLIT_BLOCKS,
                             STAGES)),
                ],
                [4, 1],
                [240, 24],
            )  # fmt: skip


def _stages(width: int, kv_block: int, rows: int) -> int:
    """Blocks of keys and of values that shared memory holds beside the queries."""
    return (SHARED_BYTES - rows * width * 2) // (kv_block * width * 4)


def fits(kv_block: int, q: torch.Tensor, *caches: torch.Tensor) -> bool:
    """Whether `hopper_attention` takes these heads, and pages and heads that lie whole rows apart or inside a row."""
    group, width = q.shape[1] // caches[0].shape[-2], q.shape[2]
    regular = (
        (x.dim() == 3 or x.stride(0) % x.stride(-3) == 0)
        and (x.stride(-2) % x.stride(-3) == 0 or x.stride(-2) < x.stride(-3))
        for x in caches
    )
    return group <= 64 and width >= 64 and _stages(width, kv_block, 128) >= 2 and all(regular)


def matrix(x: torch.Tensor, chunk: int) -> tuple[TensorDescriptor, int, int, int]:
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
    k_matrix, *k_steps = matrix(k, chunk)
    v_matrix, *v_steps = matrix(v, chunk)
    consumers = max(1, launch["block_m"] // 64)
    tile_tokens = 64 // group * consumers
    slots, ctas, parts = share(q, kv_heads, sequences, tile_tokens, block_table.shape[-1] * page, split, max_query,
                               launch["programs"])  # fmt: skip
    programs = ctas * kv_heads * (sequences if max_query <= tile_tokens else slots)
    depth = launch["num_stages"] // (2 if consumers == 1 and programs > launch["programs"] else 1)
    # Two at least: the values of a block are waited for while those of the block before are in use.
    stages = max(2, min(depth, _stages(width, kv_block, 64 * consumers)))
    # Registers a thread at entry, before the warps share them out anew: one warpgroup leaves room for a second program.
    registers = 168 if consumers == 2 else 128 if width <= 128 else 240
    _hopper_attention_kernel[(slots * kv_heads, ctas)](
        q, k_matrix, v_matrix, out, parts[0] if lse is None else lse, *parts, query_start, seq_lens, block_table,
        sequences, tokens, block_table.stride(0), q.stride(0) // 8, q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads,
        GROUP=group, PAGE=page, CHUNK=chunk, SEQUENCES=sequence_slots(sequences), SCALE=log2_scale,
        KV_BLOCK=kv_block, SPLIT_BLOCKS=split // kv_block, HEAD_DIM=width, CONSUMERS=consumers,
        STAGES=stages, SHARED=ctas > 1, LSE=lse is not None, num_warps=4,
        maxnreg=registers, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    if ctas > 1:
        combine(parts, out, query_start, seq_lens, kv_heads, split)
