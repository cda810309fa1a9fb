# SPDX-License-Identifier: Apache-2.0
"""Sums of leaves of logits, a leaf a program: a running maximum over blocks, and a sum of exponentials in each lane."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .elementary_triton import exp_nonpositive
from .leaf_cut import Cut
from .trees_triton import pair_sum, pair_sum_rows

ALL = tl.constexpr(tl.PropagateNan.ALL)
REGISTERS = 64  # so that, without reading ahead, eight programs of four warps fit a multiprocessor


@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=ALL)


@triton.jit
def finite(maximum):
    """Zero where nothing but -inf was seen, so that exp(-inf - maximum) is 0 and not NaN."""
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def _block_maximum(z):
    return tl.reduce(tl.reduce(z, 0, larger), 0, larger)


@triton.jit
def _columns(ROWS: tl.constexpr, LANES: tl.constexpr):
    return (tl.arange(0, ROWS) * LANES)[:, None] + tl.arange(0, LANES)[None, :]


@triton.jit(do_not_specialize=["first", "leaves"])
def _leaf_sums_kernel(
    logits, sums, first, leaves, WIDTH: tl.constexpr, ROW: tl.constexpr, RECIPROCAL: tl.constexpr, WHOLE: tl.constexpr,
    STAGES: tl.constexpr, VOCAB: tl.constexpr, LEAF: tl.constexpr, LEAVES: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr, FULL: tl.constexpr, LONG: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    row, leaf = tl.program_id(0).to(tl.int64), tl.program_id(1)
    begin = leaf * LEAF
    held = tl.minimum(tl.minimum(LEAF, WIDTH - begin), VOCAB - (first * LEAF + begin))
    column = _columns(BLOCK // LANES, LANES)
    maximum = tl.full([1, 1], float("-inf"), tl.float32)
    lanes = tl.zeros([1, LANES], tl.float32)
    logits += row * ROW + begin
    gdc_launch_dependents()
    gdc_wait()
    for block in tl.range(0, FULL * BLOCK, BLOCK, num_stages=STAGES):
        if WHOLE:
            z = tl.load(logits + block + column) * RECIPROCAL
        else:
            z = tl.load(logits + block + column, mask=block + column < held, other=float("-inf")) * RECIPROCAL
        raised = larger(maximum, _block_maximum(z))
        added = pair_sum_rows(exp_nonpositive(z - finite(raised)))
        lanes = lanes * exp_nonpositive(maximum - finite(raised)) + added
        maximum = raised
    # The rest counts as a block with rows of -inf after it: their terms, +0, move no bit of the tree.
    at = FULL * BLOCK + _columns(LONG, LANES)
    long = tl.load(logits + at, mask=at < held, other=float("-inf")) * RECIPROCAL
    at = FULL * BLOCK + LONG * LANES + _columns(SHORT, LANES)
    short = tl.load(logits + at, mask=at < held, other=float("-inf")) * RECIPROCAL
    raised = larger(maximum, larger(_block_maximum(long), _block_maximum(short)))
    added = pair_sum_rows(exp_nonpositive(long - finite(raised)))
    added += pair_sum_rows(exp_nonpositive(short - finite(raised)))
    lanes = lanes * exp_nonpositive(maximum - finite(raised)) + added
    place = sums + (row * leaves + leaf) * 2 + tl.zeros([1, 1], tl.int32)
    tl.store(place, raised)
    tl.store(place + 1, pair_sum(lanes))


def leaf_sums(logits: torch.Tensor, cut: Cut, *, start: int, scale: float, num_warps: int, stages: int) -> torch.Tensor:
    """Logits [T, V/W] fp32 from column `start` on -> [T, 2 * leaves here]: (maximum, sum of exp(z - maximum)) by leaf,
    z being the logits times `scale`. Of `stages` blocks one is summed and the others are read ahead; where that is one,
    other programs read meanwhile.
    """
    rows, width = logits.shape
    leaves = cut.leaves if width == cut.vocab else width // cut.leaf
    sums = logits.new_empty(rows, 2 * leaves)
    if rows:
        _leaf_sums_kernel[rows, leaves](
            logits, sums, start // cut.leaf, leaves, WIDTH=width, ROW=logits.stride(0), RECIPROCAL=scale,
            WHOLE=cut.whole, STAGES=stages, **cut.constants(), num_warps=num_warps, num_stages=1,
            maxnreg=REGISTERS if stages == 1 else None, enable_fp_fusion=False, launch_pdl=True,
        )  # fmt: skip
    return sums
