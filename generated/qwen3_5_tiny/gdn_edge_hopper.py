# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, row form, on Hopper (Gluon): the edge of `gdn_step_triton` with the same bits.

A program moves 64 value columns of one head of one lane after the other over the chunk that the step filled. What the
next ones need travels into shared memory while the present ones are multiplied, so that the ways to and from memory
both stay busy. One warpgroup a multiprocessor finds room while the last rows are still computed.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from .gdn_caches import Caches, strides

PROGRAMS = 132  # one on each multiprocessor
BLOCK_V = gl.constexpr(64)


@gluon.jit
def _added(a, b):
    return a + b


@gluon.jit
def _lane_of(item, full, rank, i, slots, positions, ITEMS: gl.constexpr):
    """Slot and position of the lane that an item belongs to; of the first lane where no item is left."""
    lane = gl.sum(gl.where((full > 0) & (rank == item // ITEMS + 1), i, 0), 0)
    return gl.load(slots + lane).to(gl.int64), gl.load(positions + lane)


@gluon.jit
def _copy(tile, start, live, STRIDE: gl.constexpr):
    """Rows that lie STRIDE elements apart into a tile, 16 bytes a thread; nothing unless live."""
    WIDTH: gl.constexpr = tile.shape[1]
    EACH: gl.constexpr = 128 // tile.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.BlockedLayout([1, EACH], [32 * EACH // WIDTH, WIDTH // EACH], [4, 1], [1, 0])
    row = gl.arange(0, tile.shape[0], gl.SliceLayout(1, layout))[:, None]
    cells = row * STRIDE + gl.arange(0, WIDTH, gl.SliceLayout(0, layout))[None, :]
    async_copy.async_copy_global_to_shared(tile, start + cells, mask=live & (cells >= 0))


@gluon.jit
def _copy_rows(item, live, slot, sources, tiles, stage, H: gl.constexpr, HV: gl.constexpr, V: gl.constexpr,
               KEYS: gl.constexpr, ROWS: gl.constexpr, INVERSE: gl.constexpr, SCALARS: gl.constexpr):  # fmt: skip
    """K, R, the high part of D, and G of an item's chunk."""
    keys, residuals, inverse, decay = sources
    k_tiles, r_tiles, d_tiles, g_tiles = tiles
    K: gl.constexpr = k_tiles.shape[2]
    head = item // (V // BLOCK_V) % HV
    _copy(k_tiles.index(stage), keys + slot * KEYS + head // (HV // H) * (64 * K), live, K)
    value = item % (V // BLOCK_V) * BLOCK_V
    _copy(r_tiles.index(stage), residuals + slot * ROWS + head * (64 * V) + value, live, V)
    _copy(d_tiles.index(stage), inverse + slot * INVERSE + head * (64 * 32), live, 32)
    r = gl.arange(0, 64, gl.BlockedLayout([1], [32], [4], [0]))
    scalars = decay + slot * SCALARS + head * 64 + r
    async_copy.async_copy_global_to_shared(g_tiles.index(stage), scalars, mask=live & (r >= 0))


@gluon.jit
def _solved(residual, d, B: gl.constexpr):
    """U of a block of 16 rows, transposed, its product running."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    left = residual.slice(16 * B, 16).permute((1, 0)).load(layout)
    left = gl.convert_layout(left, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)
    zero = gl.zeros([BLOCK_V, 16], gl.float32, layout)
    return warpgroup_mma(left, d.slice(16 * B, 16).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def _advanced(s, u, key, decays, last, B: gl.constexpr):
    """The state and the writes of a block of 16 rows, their product running."""
    K: gl.constexpr = key.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    G = decays.slice(16 * B, 16).load(gl.SliceLayout(0, u.type.layout))
    u = (u * gl.exp2(last - G)[None, :]).to(gl.bfloat16)
    operand = gl.convert_layout(u, gl.DotOperandLayout(0, layout, 2), assert_trivial=True)
    return warpgroup_mma(operand, key.slice(16 * B, 16), s, is_async=True)


@gluon.jit(do_not_specialize=["lanes"])
def _hopper_edge_kernel(
    slots, positions, lanes, state, snapshot, keys, residuals, inverse, decay,
    H: gl.constexpr, HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, LOOKUP: gl.constexpr,
    STATE: gl.constexpr, SNAPSHOT: gl.constexpr, KEYS: gl.constexpr, ROWS: gl.constexpr, INVERSE: gl.constexpr,
    SCALARS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 4], [128 // K, K // 4], [4, 1], [1, 0])
    i = gl.arange(0, LOOKUP, gl.BlockedLayout([1], [32], [4], [0]))
    slot_i = gl.load(slots + i, mask=i < lanes, other=0)
    full = ((slot_i > 0) & (gl.load(positions + i, mask=i < lanes, other=0) % 64 == 63)).to(gl.int32)
    ITEMS: gl.constexpr = HV * (V // BLOCK_V)
    TILE: gl.constexpr = BLOCK_V * K
    items = gl.sum(full, 0) * ITEMS
    item = gl.program_id(0)
    step = gl.num_programs(0)
    if item >= items:
        gdc_wait()
    else:
        rank = gl.associative_scan(full, 0, _added)
        s_tiles = gl.allocate_shared_memory(gl.float32, [2, BLOCK_V, K], gl.SwizzledSharedLayout(4, 1, 8, [1, 0]))
        tiles = (
            gl.allocate_shared_memory(gl.bfloat16, [2, 64, K], gl.NVMMASharedLayout(128, 16, 2)),
            gl.allocate_shared_memory(gl.bfloat16, [2, 64, BLOCK_V], gl.NVMMASharedLayout(128, 16, 2)),
            gl.allocate_shared_memory(gl.bfloat16, [2, 64, 16], gl.NVMMASharedLayout(32, 16, 2)),
            gl.allocate_shared_memory(gl.float32, [2, 64], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        )
        sources = (keys, residuals, inverse, decay)
        slot, position = _lane_of(item, full, rank, i, slots, positions, ITEMS)
        next_slot, next_position = _lane_of(item + step, full, rank, i, slots, positions, ITEMS)
        _copy(s_tiles.index(0), state + slot * STATE + item % ITEMS * TILE, position >= 64, K)
        gdc_wait()
        _copy_rows(item, item < items, slot, sources, tiles, 0, H, HV, V, KEYS, ROWS, INVERSE, SCALARS)
        async_copy.commit_group()
        stage = 0
        while item < items:
            following = item + step
            live = following < items
            gl.thread_barrier()
            start = state + next_slot * STATE + following % ITEMS * TILE
            _copy(s_tiles.index(stage ^ 1), start, live & (next_position >= 64), K)
            _copy_rows(following, live, next_slot, sources, tiles, stage ^ 1, H, HV, V, KEYS, ROWS, INVERSE, SCALARS)
            async_copy.commit_group()
            after_slot, after_position = _lane_of(following + step, full, rank, i, slots, positions, ITEMS)
            async_copy.wait_group(1)
            fence_async_shared()
            gl.thread_barrier()
            tile, key, residual = s_tiles.index(stage), tiles[0].index(stage), tiles[1].index(stage)
            d, decays = tiles[2].index(stage), tiles[3].index(stage)
            u0, u1 = _solved(residual, d, 0), _solved(residual, d, 1)
            u2, u3 = _solved(residual, d, 2), _solved(residual, d, 3)
            last = gl.max(decays.slice(63, 1).load(gl.SliceLayout(0, layout)), 0)
            s = gl.where(position >= 64, tile.load(layout), 0.0) * gl.exp2(last)
            u0, u1, u2, u3 = warpgroup_mma_wait(0, deps=(u0, u1, u2, u3))
            s = _advanced(s, u0, key, decays, last, 0)
            s = _advanced(s, u1, key, decays, last, 1)
            s = _advanced(s, u2, key, decays, last, 2)
            s = _advanced(s, u3, key, decays, last, 3)
            tile.store(warpgroup_mma_wait(0, deps=(s,)))
            gl.thread_barrier()
            row = gl.arange(0, BLOCK_V, gl.SliceLayout(1, wide))[:, None]
            cells = item % ITEMS * TILE + row * K + gl.arange(0, K, gl.SliceLayout(0, wide))[None, :]
            moved = tile.load(wide)
            gl.store(state + slot * STATE + cells, moved)
            gl.store(snapshot + slot * SNAPSHOT + cells, moved.to(gl.bfloat16))
            slot, position, next_slot, next_position = next_slot, next_position, after_slot, after_position
            item = following
            stage ^= 1
        async_copy.wait_group(0)


def hopper_edge(caches: Caches, slots: torch.Tensor, positions: torch.Tensor) -> None:
    """State and snapshot of every lane whose chunk the step filled, in place; overlaps the launch before it."""
    c, lanes, (v_heads, width, key_width) = caches, slots.shape[0], caches.state.shape[1:]
    _hopper_edge_kernel[(min(PROGRAMS, lanes * v_heads * (width // BLOCK_V.value)),)](
        slots, positions, lanes, c.state, c.snapshot, c.keys, c.residuals, c.inverse, c.decay,
        H=c.keys.shape[1], HV=v_heads, K=key_width, V=width, **strides(c), LOOKUP=triton.next_power_of_2(lanes),
        num_warps=4, num_stages=1, launch_pdl=True, enable_fp_fusion=False,
    )  # fmt: skip
