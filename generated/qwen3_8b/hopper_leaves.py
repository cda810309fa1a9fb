# SPDX-License-Identifier: Apache-2.0
"""The tree of one tile on a Hopper warpgroup: 64 rows of x by the transposed rows of weight, leaf after leaf.

Tiles lie in a ring of shared memory that another warp fills. A leaf is one chain of wgmma instructions by ascending k
from zero; a node is `left + right` in fp32. The next leaf begins before the nodes of this one are added, wherever
registers have room for both.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from .hopper_tiles import next_slot


@gluon.jit
def _before(slot, STAGES: gl.constexpr):
    return gl.where(slot == 0, STAGES, slot) - 1


@gluon.jit
def _start(x_tiles, w_tiles, full, slot, phase, BLOCK_N: gl.constexpr, layout: gl.constexpr):
    """The first step of a leaf, from zero."""
    mbarrier.wait(full.index(slot), phase)
    zeros = gl.zeros([64, BLOCK_N], gl.float32, layout)
    return warpgroup_mma(x_tiles.index(slot), w_tiles.index(slot).permute((1, 0)), zeros, use_acc=False, is_async=True)


@gluon.jit
def _continue(total, x_tiles, w_tiles, full, empty, slot, phase, STEPS: gl.constexpr, STAGES: gl.constexpr):
    """The other steps, the last of which is still being multiplied on return."""
    for _ in range(1, STEPS):
        slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(full.index(slot), phase)
        total = warpgroup_mma(x_tiles.index(slot), w_tiles.index(slot).permute((1, 0)), total, is_async=True)
        total = warpgroup_mma_init(warpgroup_mma_wait(1, deps=(total,)))
        mbarrier.arrive(empty.index(_before(slot, STAGES)))
    return total, slot, phase


@gluon.jit
def _settle(anywhere, node, never):
    """A store that never happens, but whose value is needed here: ptxas would put off every addition to the last leaf
    and run out of registers for the leaves."""
    if never:
        place = anywhere + gl.arange(0, node.shape[0], gl.SliceLayout(1, node.type.layout))[:, None] * node.shape[1]
        gl.store(place + gl.arange(0, node.shape[1], gl.SliceLayout(0, node.type.layout))[None, :], node)


@gluon.jit
def root(x_tiles, w_tiles, full, empty, slot, phase, kept, anywhere, never, LEAVES: gl.constexpr,
         STEPS: gl.constexpr, LEAF_DTYPE: gl.constexpr, STAGES: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """The node over LEAVES leaves of STEPS steps each, fp32, and where the ring stands then.

    Two sets of registers hold nodes beside the leaf under way; of 128 columns and 8 leaves a third node waits at
    `kept`, in shared memory.
    """
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    total = _start(x_tiles, w_tiles, full, slot, phase, BLOCK_N, layout)
    for leaf in gl.static_range(LEAVES):
        total, slot, phase = _continue(total, x_tiles, w_tiles, full, empty, slot, phase, STEPS, STAGES)
        slot, phase = next_slot(slot, phase, STAGES)
        if leaf + 1 < LEAVES and (BLOCK_N < 128 or leaf % 4 != 3):
            following = _start(x_tiles, w_tiles, full, slot, phase, BLOCK_N, layout)
            node = warpgroup_mma_wait(1, deps=(total,))
        else:
            node = warpgroup_mma_wait(0, deps=(total,))
        mbarrier.arrive(empty.index(_before(slot, STAGES)))
        node = node.to(LEAF_DTYPE).to(gl.float32)
        if leaf % 2 == 1:
            node = one + node  # noqa: F821
        if leaf % 4 == 3:
            node = two + node  # noqa: F821
        if leaf % 8 == 7:
            node = (four if BLOCK_N < 128 else kept.load(layout)) + node  # noqa: F821
        if leaf + 1 < LEAVES:
            if leaf % 2 == 0:
                one = node  # noqa: F841
            elif leaf % 4 == 1:
                _settle(anywhere, node, never)
                two = node  # noqa: F841
            elif BLOCK_N < 128:
                four = node  # noqa: F841
            else:
                _settle(anywhere, node, never)
                following = _start(x_tiles, w_tiles, full, slot, phase, BLOCK_N, layout)
                tma.store_wait(0)
                kept.store(node)
            total = following
    return node, slot, phase
