# SPDX-License-Identifier: Apache-2.0
"""Splits of the keys of an attention row: how programs share them out, and how their results become one.

A split's result is its maximum, its sum of exponentials and its accumulator, all fp32. Whoever merges them does it by
ascending split, one after the other.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def finite(top):
    """The maximum to subtract; a row that has seen no key yet subtracts zero, for -inf - -inf is NaN."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def merge(top, total, acc, split_top, split_total, split_acc):
    """The next split into the running result; a split that a row does not see changes no bit of it."""
    new_top = tl.maximum(top, split_top)
    base = finite(new_top)
    old, new = tl.exp2(top - base), tl.exp2(split_top - base)
    return new_top, total * old + split_total * new, acc * old[:, None] + split_acc * new[:, None]


@triton.jit
def normalise(total, acc):
    return (acc * tl.div_rn(1.0, total)[:, None] + 0.0).to(tl.bfloat16)  # + 0.0: an exact zero is +0 on every path


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _attention_combine_kernel(tops, totals, accs, out, query_start, seq_lens, sequences, tokens, SPLIT: tl.constexpr,
                              HEADS: tl.constexpr, HEAD_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
                              SEQUENCES: tl.constexpr):  # fmt: skip
    """The splits of HEAD_ROWS heads of one token, merged in ascending order."""
    gdc_launch_dependents()
    gdc_wait()
    token = tl.program_id(0)
    index = tl.arange(0, SEQUENCES)
    begin = tl.load(query_start + index, mask=index < sequences, other=0)
    sequence = tl.max(tl.where((index < sequences) & (begin <= token), index, 0), 0)
    end = tl.load(query_start + sequence + 1)
    if token >= end:
        return
    seen = tl.load(seq_lens + sequence) - end + token + 1
    head = tl.program_id(1) * HEAD_ROWS + tl.arange(0, HEAD_ROWS)
    valid = head < HEADS
    column = tl.arange(0, HEAD_DIM)[None, :]
    row = token.to(tl.int64) * HEADS + head
    top = tl.full((HEAD_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((HEAD_ROWS,), tl.float32)
    acc = tl.zeros((HEAD_ROWS, HEAD_DIM), tl.float32)
    for split in tl.range(0, tl.cdiv(seen, SPLIT), num_stages=4):
        part = split.to(tl.int64) * tokens * HEADS + row
        s_top = tl.load(tops + part, mask=valid, other=0.0)
        s_total = tl.load(totals + part, mask=valid, other=1.0)
        s_acc = tl.load(accs + part[:, None] * HEAD_DIM + column, mask=valid[:, None], other=0.0)
        top, total, acc = merge(top, total, acc, s_top, s_total, s_acc)
    tl.store(out + row[:, None] * HEAD_DIM + column, normalise(total, acc), mask=valid[:, None])


def power_of_2(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def sequence_slots(sequences: int) -> int:
    """How many sequence starts a kernel reads at once: a compiled size, so few of them."""
    return max(128, power_of_2(sequences))


def share(
    q: torch.Tensor,
    kv_heads: int,
    sequences: int,
    tile_tokens: int,
    keys: int,
    split: int,
    max_query: int,
    programs: int,
) -> tuple[int, int, list[torch.Tensor]]:
    """Tiles of a launch, CTAs that share the splits of one tile, and room for the results of splits.

    All from shapes and maxima: no length is read. There are tiles for any division of the rows of q into sequences, and
    about as many CTAs in all as `programs` asks for, one a tile at least. With one CTA a tile nothing is stored there.
    """
    tokens, heads, width = q.shape
    slots = tokens // tile_tokens + sequences
    tiles = sequences if max_query <= tile_tokens else slots
    splits = -(-keys // split)
    ctas = max(1, min(splits, programs // (tiles * kv_heads)))
    if ctas == 1:
        return slots, ctas, [q, q, q]
    shape = (splits, tokens, heads)
    shapes = (shape, shape, (*shape, width))
    return slots, ctas, [torch.empty(s, dtype=torch.float32, device=q.device) for s in shapes]


def combine(
    parts: list[torch.Tensor],
    out: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    kv_heads: int,
    split: int,
) -> None:
    """Fills out [T, q_heads, D] from the results of its rows' splits, laid out [splits, T, q_heads] and [..., D]."""
    tokens, heads, width = out.shape
    sequences = query_start.shape[0] - 1
    _attention_combine_kernel[(tokens, kv_heads)](
        *parts, out, query_start, seq_lens, sequences, tokens, SPLIT=split, HEADS=heads,
        HEAD_ROWS=power_of_2(heads // kv_heads), HEAD_DIM=width, SEQUENCES=sequence_slots(sequences), num_warps=1,
        num_stages=1, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
