# SPDX-License-Identifier: Apache-2.0
"""Which rows and keys a program of `hopper_attention` works on: its tiles, and the blocks of its splits."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def owner(cu_seqlens, sequences, slot, SEQUENCES: gl.constexpr, TILE: gl.constexpr, WARPS: gl.constexpr = 4):
    """The sequence that owns a slot of TILE tokens, its start and length, and the slot's first token in it.

    Every sequence has as many slots as tiles, perhaps one more: then the first token is at or past its end.
    """
    index = gl.arange(0, SEQUENCES, gl.BlockedLayout([1], [32], [WARPS], [0]))
    begin = gl.load(cu_seqlens + index, mask=index < sequences, other=0)
    sequence = gl.max(gl.where((index < sequences) & (begin // TILE + index <= slot), index, 0), 0)
    start = gl.load(cu_seqlens + sequence)
    return sequence, start, gl.load(cu_seqlens + sequence + 1) - start, (slot - start // TILE - sequence) * TILE


@gluon.jit
def aligned_start(start, sequence):
    """Where a sequence's rows start in an array of fp32 rows that the tensor memory accelerator reads: at 16 bytes."""
    return start // 4 * 4 + sequence * 4


@gluon.jit
def tile_of(batch, KEY_HEADS: gl.constexpr, SEQUENCES: gl.constexpr, TILE: gl.constexpr, SINGLE: gl.constexpr,
            KV_BLOCK: gl.constexpr, PAGE: gl.constexpr, WARPS: gl.constexpr):  # fmt: skip
    """The program's sequence, key head, rows and keys, and their blocks of keys: none for a tile past the sequence.

    Long rows come first, of every head. SINGLE: every sequence is one tile.
    """
    query_start, seq_lens, sequences = batch
    place = gl.num_programs(0) - 1 - gl.program_id(0)
    slot = place // KEY_HEADS
    if SINGLE:
        sequence = slot
        start = gl.load(query_start + sequence)
        queries = gl.load(query_start + sequence + 1) - start
        tile = 0
    else:
        sequence, start, queries, tile = owner(query_start, sequences, slot, SEQUENCES, TILE, WARPS)
    keys = gl.load(seq_lens + sequence) if PAGE else queries
    blocks = (keys - queries + gl.minimum(tile + TILE, queries) + KV_BLOCK - 1) // KV_BLOCK
    return sequence, place % KEY_HEADS, start, queries, tile, keys, gl.where(tile < queries, blocks, 0)


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
