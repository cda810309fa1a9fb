# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities of the targets of few rows, in clusters for Hopper: a program reads most of its leaf at once.

Four blocks and the rest are on their way together, and their maxima cross the warps beside each other.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .hopper_leaf_sums import add_block, add_rest, exchange, layouts, nothing_yet, places
from .leaf_cut import Cut

AHEAD, WARPS = 4, 8
REGISTERS = 128  # so that two programs fit a multiprocessor: with one, only 15 clusters lie side by side


@gluon.jit
def _token_logprobs_kernel(logits, targets, sums, normalisers, logprobs, WIDTH: gl.constexpr, ROW: gl.constexpr,
                           VOCAB: gl.constexpr, LEAF: gl.constexpr, LEAVES: gl.constexpr, BLOCK: gl.constexpr,
                           LANES: gl.constexpr, FULL: gl.constexpr, LONG: gl.constexpr, SHORT: gl.constexpr,
                           RECIPROCAL: gl.constexpr, CUBE: gl.constexpr, SHARED: gl.constexpr,
                           EVERYWHERE: gl.constexpr, AHEAD: gl.constexpr):  # fmt: skip
    begin, column, long, short = places(LEAF, LEAVES, BLOCK, LANES, FULL, LONG, SHORT, CUBE)
    known = gl.minimum(begin + LEAF, min(VOCAB, WIDTH))
    row = gl.program_id(0).to(gl.int64)
    logits += row * ROW
    gdc_launch_dependents()
    gdc_wait()
    blocks = ()
    for block in gl.static_range(AHEAD):
        blocks += (gl.load(logits + block * BLOCK + column),)
    z_long = gl.load(logits + long, mask=long < known, other=float("-inf"))
    z_short = gl.load(logits + short, mask=short < known, other=float("-inf"))
    target = gl.load(targets + row)
    chosen = gl.load(logits + target, mask=(target >= 0) & (target < VOCAB), other=0.0)
    maximum, lanes = nothing_yet(LEAVES, LANES, CUBE)
    for held in gl.static_range(AHEAD):
        maximum, lanes = add_block(maximum, lanes, blocks[held] * RECIPROCAL, CUBE)
    for block in range(AHEAD, FULL):
        maximum, lanes = add_block(maximum, lanes, gl.load(logits + block * BLOCK + column) * RECIPROCAL, CUBE)
    maximum, lanes = add_rest(maximum, lanes, z_long * RECIPROCAL, z_short * RECIPROCAL, CUBE)
    top, logarithm = exchange(sums + row * (2 * LEAVES), maximum, lanes, LEAVES, EVERYWHERE)
    gl.store(normalisers + row * 2, top)
    gl.store(normalisers + row * 2 + 1, logarithm)
    gl.store(logprobs + row, (chosen * RECIPROCAL - top) - logarithm)


def token_logprobs_cluster(
    logits: torch.Tensor, targets: torch.Tensor, cut: Cut, *, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [T, V] fp32, T > 0, times `scale`, and targets [T] int64 -> each row's maximum and the logarithm of its
    sum [T, 2], and its target's log-probability [T].

    A target outside the vocabulary counts as a logit of +0. `cut` must fit a cluster, see `hopper_leaf_sums`.
    """
    rows, width = logits.shape
    sums, normalisers = logits.new_empty(rows, 2 * cut.leaves), logits.new_empty(rows, 2)
    logprobs = logits.new_empty(rows)
    _token_logprobs_kernel[(rows,)](
        logits, targets, sums, normalisers, logprobs, WIDTH=width, ROW=logits.stride(0), RECIPROCAL=scale,
        AHEAD=min(AHEAD, cut.full), **cut.constants(), **layouts(cut, WARPS), num_warps=WARPS, num_ctas=cut.leaves,
        maxnreg=REGISTERS, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
    return normalisers, logprobs
