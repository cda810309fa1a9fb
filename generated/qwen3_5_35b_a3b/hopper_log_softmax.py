# SPDX-License-Identifier: Apache-2.0
"""Rows of log-softmax, each in one cluster for Hopper: the arithmetic of the leaves' kernels, in the same order.

Every program of a cluster sums a leaf of the row, they exchange maxima and sums, and each writes its leaf's results
while most of its logits still lie in L2.
"""

from __future__ import annotations

import torch
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .elementary_triton import exp_nonpositive, log
from .trees_triton import levels

ALL = gl.constexpr(tl.PropagateNan.ALL)
WARPS = 8


@gluon.jit
def _larger(a, b):
    return gl.maximum(a, b, propagate_nan=ALL)


@gluon.jit
def _finite(maximum):
    return gl.where(maximum == float("-inf"), 0.0, maximum)


@gluon.jit
def _row_tree(values):
    """[leaves, n, lanes] -> [leaves, lanes]: adjacent pairs of the second axis."""
    for _ in gl.static_range(levels(values.shape[1])):
        values = gl.sum(values.reshape([values.shape[0], values.shape[1] // 2, 2, values.shape[2]]), axis=2)
    return values.reshape([values.shape[0], values.shape[2]])


@gluon.jit
def _lane_tree(values):
    """[leaves, n] -> [leaves]: adjacent pairs."""
    for _ in gl.static_range(levels(values.shape[1])):
        values = gl.sum(values.reshape([values.shape[0], values.shape[1] // 2, 2]), axis=2)
    return values.reshape([values.shape[0]])


@gluon.jit
def _cluster_barrier():
    """All threads of the cluster meet, and see what each of them stored before."""
    gl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _log_softmax_cluster_kernel(logits, sums, out, WIDTH: gl.constexpr, ROW: gl.constexpr, VOCAB: gl.constexpr,
                                LEAF: gl.constexpr, LEAVES: gl.constexpr, BLOCK: gl.constexpr, LANES: gl.constexpr,
                                RECIPROCAL: gl.constexpr, CUBE: gl.constexpr,
                                EVERYWHERE: gl.constexpr):  # fmt: skip
    """One row, a leaf a program. CUBE: the layout of a block [LEAVES, BLOCK / LANES, LANES]; EVERYWHERE: of [LEAVES],
    the same in every program.
    """
    flat: gl.constexpr = gl.SliceLayout(1, CUBE)
    blocks: gl.constexpr = (LEAF + BLOCK - 1) // BLOCK
    known: gl.constexpr = min(VOCAB, WIDTH)
    row = gl.program_id(0).to(gl.int64)
    place = gl.arange(0, LEAVES, gl.SliceLayout(1, flat))
    begin = gl.expand_dims(place[:, None], 1) * LEAF
    across = gl.expand_dims(gl.arange(0, LANES, gl.SliceLayout(0, flat))[None, :], 1)
    down = gl.arange(0, BLOCK // LANES, gl.SliceLayout(0, gl.SliceLayout(2, CUBE)))
    column = gl.expand_dims(down[None, :], 2) * LANES + across
    logits += row * ROW
    sums += row * (2 * LEAVES)
    out += row * WIDTH
    gdc_launch_dependents()
    gdc_wait()
    maximum = gl.full([LEAVES], float("-inf"), gl.float32, gl.SliceLayout(1, flat))
    lanes = gl.zeros([LEAVES, LANES], gl.float32, flat)
    inside = (column < LEAF) & (begin + column < known)
    following = gl.load(logits + begin + column, mask=inside, other=float("-inf"))
    for block in range(blocks):
        z = following * RECIPROCAL
        ahead = (block + 1) * BLOCK + column  # read while this block is summed
        inside = (ahead < LEAF) & (begin + ahead < known)
        following = gl.load(logits + begin + ahead, mask=inside, other=float("-inf"))
        raised = _larger(maximum, gl.reduce(gl.reduce(z, 1, _larger), 1, _larger))
        finite = _finite(raised)
        terms = exp_nonpositive(z - gl.expand_dims(finite[:, None], 1))
        kept = lanes * exp_nonpositive(maximum - finite)[:, None]
        lanes = kept + gl.convert_layout(_row_tree(terms), flat, assert_trivial=True)
        maximum = raised
    gl.store(sums + place * 2, maximum)
    gl.store(sums + place * 2 + 1, gl.convert_layout(_lane_tree(lanes), gl.SliceLayout(1, flat)))
    _cluster_barrier()
    pairs = sums + 2 * gl.arange(0, LEAVES, EVERYWHERE)
    maxima = gl.load(pairs)
    top = gl.reduce(maxima, 0, _larger) + 0.0  # -0.0 and +0.0 are one maximum
    scaled = gl.load(pairs + 1) * exp_nonpositive(maxima - _finite(top))
    logarithm = log(gl.sum(_lane_tree(scaled.reshape([1, LEAVES])), axis=0))
    for index in range(blocks):  # from the last block back: those were read last
        at = (blocks - 1 - index) * BLOCK + column
        inside = (at < LEAF) & (begin + at < WIDTH)
        z = gl.load(logits + begin + at, mask=inside, other=0.0) * RECIPROCAL
        result = (z - top) - logarithm
        if known < WIDTH:
            result = gl.where(begin + at < known, result, float("-inf"))
        gl.store(out + begin + at, result, mask=inside, cache_modifier=".cs")


def _layouts(leaves: int, lanes: int) -> tuple[gl.BlockedLayout, gl.BlockedLayout]:
    """A block's layout, whose first axis the programs of a cluster divide, and that of what each of them knows."""
    bits = leaves.bit_length() - 1
    bases = [[1 << bit, 0, 0] for bit in range(bits)]
    vector = max(1, min(4, lanes // (32 * WARPS)))
    cube = gl.BlockedLayout([1, 1, vector], [1, 1, 32], [1, 1, WARPS], [2, 1, 0], cga_layout=bases)
    return cube, gl.BlockedLayout([1], [32], [WARPS], [0], cga_layout=[[0]] * bits)


def log_softmax_cluster(
    logits: torch.Tensor, out: torch.Tensor, *, vocab: int, leaf: int, leaves: int, block: int, lanes: int, scale: float
) -> None:
    """Fills out [T, V], T > 0, with the log-probabilities of logits [T, V] fp32 times `scale`; at most eight leaves."""
    rows, width = logits.shape
    cube, everywhere = _layouts(leaves, lanes)
    sums = logits.new_empty(rows, 2 * leaves)
    _log_softmax_cluster_kernel[(rows,)](
        logits, sums, out, WIDTH=width, ROW=logits.stride(0), VOCAB=vocab, LEAF=leaf, LEAVES=leaves, BLOCK=block,
        LANES=lanes, RECIPROCAL=scale, CUBE=cube, EVERYWHERE=everywhere, num_warps=WARPS, num_ctas=leaves,
        enable_fp_fusion=False, launch_pdl=True,
    )  # fmt: skip
