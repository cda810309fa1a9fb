# SPDX-License-Identifier: Apache-2.0
"""Rows of logits in clusters for Hopper, a leaf a program: the arithmetic of `leaf_sums_triton`, in the same order."""

from __future__ import annotations

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .elementary_triton import exp_nonpositive, log
from .leaf_cut import Cut
from .trees_triton import levels

ALL = gl.constexpr(tl.PropagateNan.ALL)
SHARED_BYTES = 192 << 10


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
def _block_maximum(z):
    return gl.reduce(gl.reduce(z, 1, _larger), 1, _larger)


@gluon.jit
def _lane_sums(z, finite, CUBE: gl.constexpr):
    sums = _row_tree(exp_nonpositive(z - gl.expand_dims(finite[:, None], 1)))
    return gl.convert_layout(sums, gl.SliceLayout(1, CUBE), assert_trivial=True)


@gluon.jit
def _columns(ROWS: gl.constexpr, LANES: gl.constexpr, CUBE: gl.constexpr):
    across = gl.expand_dims(gl.arange(0, LANES, gl.SliceLayout(0, gl.SliceLayout(1, CUBE)))[None, :], 1)
    down = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, CUBE)))
    return gl.expand_dims(down[None, :], 2) * LANES + across


@gluon.jit
def places(LEAF: gl.constexpr, LEAVES: gl.constexpr, BLOCK: gl.constexpr, LANES: gl.constexpr, FULL: gl.constexpr,
           LONG: gl.constexpr, SHORT: gl.constexpr, CUBE: gl.constexpr):  # fmt: skip
    """Where a leaf begins, the columns of its first block and of both parts of its rest."""
    leaf = gl.arange(0, LEAVES, gl.SliceLayout(1, gl.SliceLayout(1, CUBE)))
    begin = gl.expand_dims(leaf[:, None], 1) * LEAF
    rest = begin + FULL * BLOCK
    return (begin, begin + _columns(BLOCK // LANES, LANES, CUBE), rest + _columns(LONG, LANES, CUBE),
            rest + LONG * LANES + _columns(SHORT, LANES, CUBE))  # fmt: skip


@gluon.jit
def nothing_yet(LEAVES: gl.constexpr, LANES: gl.constexpr, CUBE: gl.constexpr):
    """The maximum and the lanes' sums before the first block."""
    flat: gl.constexpr = gl.SliceLayout(1, CUBE)
    maximum = gl.full([LEAVES], float("-inf"), gl.float32, gl.SliceLayout(1, flat))
    return maximum, gl.zeros([LEAVES, LANES], gl.float32, flat)


@gluon.jit
def add_block(maximum, lanes, z, CUBE: gl.constexpr):
    raised = _larger(maximum, _block_maximum(z))
    finite = _finite(raised)
    return raised, lanes * exp_nonpositive(maximum - finite)[:, None] + _lane_sums(z, finite, CUBE)


@gluon.jit
def add_rest(maximum, lanes, long, short, CUBE: gl.constexpr):
    """As a block of both parts and rows of -inf: their terms, +0, move no bit of the tree."""
    raised = _larger(maximum, _larger(_block_maximum(long), _block_maximum(short)))
    finite = _finite(raised)
    added = _lane_sums(long, finite, CUBE) + _lane_sums(short, finite, CUBE)
    return raised, lanes * exp_nonpositive(maximum - finite)[:, None] + added


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
def exchange(sums, maximum, lanes, LEAVES: gl.constexpr, EVERYWHERE: gl.constexpr):
    """Every program's leaf through `sums` [2 * LEAVES] -> the row's maximum and the logarithm of its sum."""
    place = sums + 2 * gl.arange(0, LEAVES, maximum.type.layout)
    gl.store(place, maximum)
    gl.store(place + 1, gl.convert_layout(_lane_tree(lanes), maximum.type.layout))
    _cluster_barrier()
    pairs = sums + 2 * gl.arange(0, LEAVES, EVERYWHERE)
    maxima = gl.load(pairs)
    top = gl.reduce(maxima, 0, _larger) + 0.0  # -0.0 and +0.0 are one maximum
    scaled = gl.load(pairs + 1) * exp_nonpositive(maxima - _finite(top))
    return top, log(gl.sum(_lane_tree(scaled.reshape([1, LEAVES])), axis=0))


def fits(cut: Cut) -> bool:
    """Whether a cluster can hold a row: at most eight programs, and a leaf's full blocks in shared memory."""
    return cut.leaves <= 8 and cut.whole and 4 * cut.full * cut.block <= SHARED_BYTES


def layouts(cut: Cut, warps: int) -> dict[str, object]:
    """CUBE of a block [LEAVES, BLOCK / LANES, LANES], whose first axis the programs divide; SHARED, the same in shared
    memory; EVERYWHERE of [LEAVES] in every program.
    """
    bits = cut.leaves.bit_length() - 1
    bases = [[1 << bit, 0, 0] for bit in range(bits)]
    vector = max(1, min(4, cut.lanes // (32 * warps)))
    return {
        "CUBE": gl.BlockedLayout([1, 1, vector], [1, 1, 32], [1, 1, warps], [2, 1, 0], cga_layout=bases),
        "SHARED": gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0], cga_layout=bases),
        "EVERYWHERE": gl.BlockedLayout([1], [32], [warps], [0], cga_layout=[[0]] * bits),
    }
