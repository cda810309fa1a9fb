# SPDX-License-Identifier: Apache-2.0
"""Every log-probability of rows of logits, in clusters for Hopper: a row crosses memory once in each direction.

A program keeps the full blocks of its leaf in shared memory, and the rest in registers, until it writes the results.
Once it has read a block for the last time, that of its next row is on the way to the same place.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .hopper_leaf_sums import add_block, add_rest, exchange, layouts, nothing_yet, places
from .leaf_cut import Cut

MANY_ROWS, SHARE = 1024, 3  # from so many rows on, a cluster takes so many, one after the other


@gluon.jit(do_not_specialize=["rows"])
def _log_softmax_cluster_kernel(logits, sums, out, rows, WIDTH: gl.constexpr, ROW: gl.constexpr, VOCAB: gl.constexpr,
                                LEAF: gl.constexpr, LEAVES: gl.constexpr, BLOCK: gl.constexpr, LANES: gl.constexpr,
                                FULL: gl.constexpr, LONG: gl.constexpr, SHORT: gl.constexpr, RECIPROCAL: gl.constexpr,
                                CUBE: gl.constexpr, SHARED: gl.constexpr, EVERYWHERE: gl.constexpr):  # fmt: skip
    begin, column, long, short = places(LEAF, LEAVES, BLOCK, LANES, FULL, LONG, SHORT, CUBE)
    end = gl.minimum(begin + LEAF, WIDTH)
    known = gl.minimum(end, VOCAB)
    ring = gl.allocate_shared_memory(gl.float32, [max(FULL, 1), LEAVES, BLOCK // LANES, LANES], SHARED)
    first = gl.program_id(0)
    step = gl.num_programs(0)
    source = logits + first.to(gl.int64) * ROW
    gdc_launch_dependents()
    gdc_wait()
    for block in range(FULL):
        async_copy.async_copy_global_to_shared(ring.index(block), source + block * BLOCK + column)
        async_copy.commit_group()
    z_long = gl.load(source + long, mask=long < known, other=float("-inf"))
    z_short = gl.load(source + short, mask=short < known, other=float("-inf"))
    for row in range(first, rows, step):
        maximum, lanes = nothing_yet(LEAVES, LANES, CUBE)
        for block in range(FULL):
            async_copy.wait_group(max(FULL - 1, 0))
            maximum, lanes = add_block(maximum, lanes, ring.index(block).load(CUBE) * RECIPROCAL, CUBE)
            async_copy.commit_group()  # of nothing: the next block's copy is now the oldest of FULL
        z_long *= RECIPROCAL
        z_short *= RECIPROCAL
        maximum, lanes = add_rest(maximum, lanes, z_long, z_short, CUBE)
        top, logarithm = exchange(sums + row * (2 * LEAVES), maximum, lanes, LEAVES, EVERYWHERE)
        target = out + row.to(gl.int64) * WIDTH
        following = row + step
        source = logits + following.to(gl.int64) * ROW
        for block in range(FULL):
            z = ring.index(block).load(CUBE) * RECIPROCAL
            if following < rows:
                async_copy.async_copy_global_to_shared(ring.index(block), source + block * BLOCK + column)
            async_copy.commit_group()
            gl.store(target + block * BLOCK + column, (z - top) - logarithm, cache_modifier=".cs")
        result = gl.where(long < VOCAB, (z_long - top) - logarithm, float("-inf"))
        gl.store(target + long, result, mask=long < end, cache_modifier=".cs")
        result = gl.where(short < VOCAB, (z_short - top) - logarithm, float("-inf"))
        gl.store(target + short, result, mask=short < end, cache_modifier=".cs")
        if following < rows:
            z_long = gl.load(source + long, mask=long < known, other=float("-inf"))
            z_short = gl.load(source + short, mask=short < known, other=float("-inf"))


def log_softmax_cluster(logits: torch.Tensor, out: torch.Tensor, cut: Cut, *, scale: float, num_warps: int) -> None:
    """Fills out [T, V], T > 0, with the log-probabilities of logits [T, V] fp32 times `scale`.

    `cut` must fit a cluster, see `hopper_leaf_sums`.
    """
    rows, width = logits.shape
    sums = logits.new_empty(rows, 2 * cut.leaves)
    _log_softmax_cluster_kernel[(triton.cdiv(rows, SHARE if rows >= MANY_ROWS else 1),)](
        logits, sums, out, rows, WIDTH=width, ROW=logits.stride(0), RECIPROCAL=scale, **cut.constants(),
        **layouts(cut, num_warps), num_warps=num_warps, num_ctas=cut.leaves, enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
