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
from .hopper_assignment import block_at, share_of, tile_of
from .hopper_rows import advance, multiply

SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers
ROWS_LAYOUT = gl.NVMMASharedLayout(128, 16, 2)


@gluon.jit
def _load(x, tile, ready, start, key, keys, table, page, row, column, PAGE: gl.constexpr, CHUNK: gl.constexpr,
          KV_BLOCK: gl.constexpr):  # fmt: skip
    for part in gl.static_range(0, KV_BLOCK, CHUNK):
        place = start + key + part
        if PAGE:  # past the last key: any page that exists
            place = gl.load(table + gl.minimum(key + part, keys - 1) // PAGE) * page + (key + part) % PAGE
        tma.async_copy_global_to_shared(x, [place + row, column], ready, tile.slice(part, CHUNK))


@gluon.jit
def _copy(k, v, ring, batch, block_table, table_row, k_step, v_step, KEY_HEADS: gl.constexpr, PAGE: gl.constexpr,
          CHUNK: gl.constexpr, SEQUENCES: gl.constexpr, TILE: gl.constexpr, SINGLE: gl.constexpr,
          KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    """Keys of a block with the values of the block before, which are multiplied together."""
    k_tiles, v_tiles, full, empty = ring
    k_page, k_row, k_column = k_step
    v_page, v_row, v_column = v_step
    first = gl.program_id(1)
    step = gl.num_programs(1)
    sequence, kv_head, start, _queries, _tile, keys, blocks = tile_of(
        batch, KEY_HEADS, SEQUENCES, TILE, SINGLE, KV_BLOCK, PAGE, 1)  # fmt: skip
    count = share_of(blocks, first, step, SPLIT_BLOCKS)
    table = block_table + sequence.to(gl.int64) * table_row
    size: gl.constexpr = KV_BLOCK * k_tiles.shape[2] * 2
    slot = 0
    phase = 0
    before = 0
    for index in range(gl.where(count == 0, 0, count + 1)):
        key = block_at(index, first, step, SPLIT_BLOCKS) * KV_BLOCK
        mbarrier.wait(empty.index(slot), phase ^ 1)
        if (index == 0) | (index == count):
            mbarrier.expect(full.index(slot), size)
        else:
            mbarrier.expect(full.index(slot), 2 * size)
        if index < count:
            _load(k, k_tiles.index(slot), full.index(slot), start, key, keys, table, k_page, kv_head * k_row,
                  kv_head * k_column, PAGE, CHUNK, KV_BLOCK)  # fmt: skip
        if index > 0:
            _load(v, v_tiles.index(slot), full.index(slot), start, before, keys, table, v_page, kv_head * v_row,
                  kv_head * v_column, PAGE, CHUNK, KV_BLOCK)  # fmt: skip
        before = key
        slot, phase = advance(slot, phase, STAGES)


@gluon.jit(do_not_specialize=["sequences", "tokens", "table_row", "q_token", "q_head", "k_page", "k_row",
                              "k_column", "v_page", "v_row", "v_column"])  # fmt: skip
def _hopper_attention_kernel(q, k, v, out, lse, tops, totals, accs, query_start, seq_lens, block_table, sequences,
                             tokens, table_row, q_token, q_head, k_page, k_row, k_column, v_page, v_row,
                             v_column, HEADS: gl.constexpr, GROUP: gl.constexpr, PAGE: gl.constexpr,
                             CHUNK: gl.constexpr, SEQUENCES: gl.constexpr, SINGLE: gl.constexpr, SCALE: gl.constexpr,
                             KV_BLOCK: gl.constexpr, SPLIT_BLOCKS: gl.constexpr, HEAD_DIM: gl.constexpr,
                             CONSUMERS: gl.constexpr, STAGES: gl.constexpr, SHARED: gl.constexpr,
                             LSE: gl.constexpr):  # fmt: skip
    tile_tokens: gl.constexpr = 64 // GROUP * CONSUMERS
    gdc_launch_dependents()
    q_tiles = gl.allocate_shared_memory(gl.bfloat16, [CONSUMERS, 64, HEAD_DIM], gl.NVMMASharedLayout(128, 16, 2))
    k_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], k.layout)
    v_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, KV_BLOCK, HEAD_DIM], v.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=CONSUMERS)
    gdc_wait()
    ring = (k_tiles, v_tiles, full, empty)
    batch = (query_start, seq_lens, sequences)
    parts = (tops, totals, accs)
    k_step = (k_page, k_row, k_column)
    v_step = (v_page, v_row, v_column)
    if CONSUMERS == 1:
        gl.warp_specialize(
            [
                (multiply, (q, out, lse, parts, q_tiles.index(0), ring, batch, tokens, q_token * 8, q_head * 8, 0,
                            HEADS, GROUP, PAGE, SEQUENCES, tile_tokens, SINGLE, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                            HEAD_DIM, STAGES, SHARED, LSE)),
                (_copy, (k, v, ring, batch, block_table, table_row, k_step, v_step, HEADS // GROUP, PAGE, CHUNK,
                         SEQUENCES, tile_tokens, SINGLE, KV_BLOCK, SPLIT_BLOCKS, STAGES)),
            ],
            [1],
            [24],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (multiply, (q, out, lse, parts, q_tiles.index(0), ring, batch, tokens, q_token * 8, q_head * 8, 0,
                            HEADS, GROUP, PAGE, SEQUENCES, tile_tokens, SINGLE, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                            HEAD_DIM, STAGES, SHARED, LSE)),
                (multiply, (q, out, lse, parts, q_tiles.index(1), ring, batch, tokens, q_token * 8, q_head * 8, 1,
                            HEADS, GROUP, PAGE, SEQUENCES, tile_tokens, SINGLE, SCALE, KV_BLOCK, SPLIT_BLOCKS,
                            HEAD_DIM, STAGES, SHARED, LSE)),
                (_copy, (k, v, ring, batch, block_table, table_row, k_step, v_step, HEADS // GROUP, PAGE, CHUNK,
                         SEQUENCES, tile_tokens, SINGLE, KV_BLOCK, SPLIT_BLOCKS, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip


def _stages(width: int, kv_block: int, rows: int) -> int:
    """Blocks of keys and of values that shared memory holds beside the queries."""
    return (SHARED_BYTES - rows * width * 2) // (kv_block * width * 4)


def _regular(strides: tuple[int, ...]) -> bool:
    token, head = strides[-3:-1]
    return (len(strides) == 3 or strides[0] % token == 0) and (head % token == 0 or head < token)


def fits(kv_block: int, q: torch.Tensor, *caches: torch.Tensor) -> bool:
    """Whether `hopper_attention` takes these heads, and pages and heads that lie whole rows apart or inside a row."""
    group, width = q.shape[1] // caches[0].shape[-2], q.shape[2]
    return (
        group <= 64 and width >= 64 and _stages(width, kv_block, 128) >= 2 and all(_regular(x.stride()) for x in caches)
    )


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
    return TensorDescriptor(x, shape, [token, 1], [chunk, width], ROWS_LAYOUT), page // token, rows, columns


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
    single = max_query <= tile_tokens
    tiles = kv_heads * (sequences if single else slots)
    depth = launch["num_stages"] // (2 if consumers == 1 and ctas * tiles > launch["programs"] else 1)
    # Two at least: the values of a block are waited for while those of the block before are in use.
    stages = max(2, min(depth, _stages(width, kv_block, 64 * consumers)))
    # Registers a thread at entry, before the warps share them out anew: one warpgroup leaves room for a second program.
    registers = 168 if consumers == 2 else 128 if width <= 128 else 240
    _hopper_attention_kernel[(tiles, ctas)](
        q, k_matrix, v_matrix, out, parts[0] if lse is None else lse, *parts, query_start, seq_lens, block_table,
        sequences, tokens, block_table.stride(0), q.stride(0) // 8, q.stride(1) // 8, *k_steps, *v_steps,
        HEADS=heads, GROUP=group, PAGE=page, CHUNK=chunk, SEQUENCES=sequence_slots(sequences), SINGLE=single,
        SCALE=log2_scale, KV_BLOCK=kv_block, SPLIT_BLOCKS=split // kv_block, HEAD_DIM=width, CONSUMERS=consumers,
        STAGES=stages, SHARED=ctas > 1, LSE=lse is not None, num_warps=4, maxnreg=registers, enable_fp_fusion=False,
        launch_pdl=True,
    )  # fmt: skip
    if ctas > 1:
        combine(parts, out, query_start, seq_lens, kv_heads, split)
