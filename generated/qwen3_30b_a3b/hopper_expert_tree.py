# SPDX-License-Identifier: Apache-2.0
"""The tree of leaves along K for 64 rows by a tile of columns, for `hopper_experts`.

A leaf is one chain of wgmma instructions by ascending k from zero; a node is `left + right` in fp32.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from .hopper_tiles import next_slot


@gluon.jit
def _settle(out, node, never):
    """A store that never happens, but whose value is needed here: ptxas would put off every addition to the last leaf
    and run out of registers for the leaves."""
    if never:
        place = out + gl.arange(0, node.shape[0], gl.SliceLayout(1, node.type.layout))[:, None]
        gl.store(place + gl.arange(0, node.shape[1], gl.SliceLayout(0, node.type.layout))[None, :], node)


@gluon.jit
def tree_of_columns(out, never, tile_rows, w_tiles, rows_full, rows_empty, full, empty, turn, slot, phase, first, last,
            LEFT: gl.constexpr, LEAVES: gl.constexpr, PIECES: gl.constexpr, PIECE: gl.constexpr, COLUMNS: gl.constexpr,
            STAGES: gl.constexpr, LOT: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """The root of one tile of columns: while a leaf of PIECES pieces is multiplied, the leaf before it joins the tree.

    `first` of its rows, which may be on their way still; `last` of them, which then make room for others.
    """
    per: gl.constexpr = w_tiles.shape[2] // PIECE  # pieces of a chunk
    done = slot
    for leaf in gl.static_range(LEAVES + 1):
        if leaf < LEAVES:
            sums = warpgroup_mma_init(gl.zeros([64, COLUMNS], gl.float32, layout))
            for piece in gl.static_range(leaf * PIECES, (leaf + 1) * PIECES):
                if first and piece % per == 0:
                    mbarrier.wait(rows_full.index(piece // per), turn)
                if piece % (per * LOT) == 0:
                    mbarrier.wait(full.index(slot), phase)
                columns = w_tiles.index(slot * LOT + piece // per % LOT).slice(LEFT, COLUMNS)
                columns = columns.slice(piece % per * PIECE, PIECE, dim=1).permute((1, 0))
                rows = tile_rows.index(piece // per).slice(piece % per * PIECE, PIECE, dim=1)
                sums = warpgroup_mma(rows, columns, sums, use_acc=piece % PIECES > 0, is_async=True)
                if piece % (per * LOT) == per * LOT - 1:
                    slot, phase = next_slot(slot, phase, STAGES)
        if leaf > 0:
            node = warpgroup_mma_wait(PIECES if leaf < LEAVES else 0, deps=(before,))  # noqa: F821
            if leaf % 2 == 0:
                node = one + node  # noqa: F821
            if leaf % 4 == 0:
                node = two + node  # noqa: F821
            if leaf == 8:
                node = four + node  # noqa: F821
            if leaf % 2 == 1:
                one = node  # noqa: F841
            elif leaf % 4 == 2:
                two = node  # noqa: F841
            else:
                four = node  # noqa: F841
            if leaf % 2 == 0 and leaf < LEAVES:
                _settle(out, node, never)
            for read in gl.static_range((leaf - 1) * PIECES + 1, leaf * PIECES + 1):
                if read % per == 0:
                    mbarrier.arrive(rows_empty.index(read // per - 1), pred=last)
                if read % (per * LOT) == 0:
                    mbarrier.arrive(empty.index(done))
                    done, _ = next_slot(done, phase, STAGES)
        if leaf < LEAVES:
            before = sums  # noqa: F841
    return node, slot, phase
