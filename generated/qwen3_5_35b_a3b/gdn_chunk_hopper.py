# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form, on Hopper (Gluon): one chunk from its state, in the registers of one warpgroup.

State, R and U are left operands. The solve goes by blocks of 16 rows: once the residual of a block is final, its
products with C are added to the later blocks, and under the wait for them run products with q, Q and D and the state's
update. ptxas lets products run on only while nothing else reads the registers that they write; a value that one loop
pass leaves to the next must not be such a register, hence outputs are rounded before they are carried.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from .gdn_tiles_hopper import add, block, corner, joined, scalar_row, send, start


@gluon.jit
def _final(x, B: gl.constexpr, rest, MASKED: gl.constexpr):
    """R of a block, once every earlier row has been added."""
    r = (x + 0.0).to(gl.bfloat16)
    if MASKED:
        r = gl.where((16 * B + gl.arange(0, 16, gl.SliceLayout(0, r.type.layout)))[None, :] < rest, r, 0.0)
    return r


@gluon.jit
def _base(x, value, decays, betas, B: gl.constexpr, rest, MASKED: gl.constexpr):
    e = gl.exp2(scalar_row(decays, 16 * B, 16, rest, MASKED))
    return (block(value, B).to(gl.float32) - block(x, B) * e) * scalar_row(betas, 16 * B, 16, rest, MASKED)


@gluon.jit
def _decayed(u, decays, last, B: gl.constexpr, rest, MASKED: gl.constexpr):
    u = u * gl.exp2(last - scalar_row(decays, 16 * B, 16, rest, MASKED))
    if MASKED:
        u = gl.where((16 * B + gl.arange(0, 16, gl.SliceLayout(0, u.type.layout)))[None, :] < rest, u, 0.0)
    return u.to(gl.bfloat16)


@gluon.jit
def _trace(u, tile, B: gl.constexpr):
    tile.slice(16 * B, 16).permute((1, 0)).store(u.to(gl.bfloat16))


@gluon.jit
def solve_chunk(s, done, ring, stage, sinks, staging, row, column, start_row, former_row, last, rest, scale,
           STRIDE: gl.constexpr, OUT: gl.constexpr, TRACE: gl.constexpr, MASKED: gl.constexpr):  # fmt: skip
    """One chunk from its state s [64, K]; done: outputs of the chunk before, stored under the first product.

    Returns the state after the chunk, its outputs and its R, all transposed.
    """
    q_tiles, k_tiles, v_tiles, d_tiles, c_tiles, f_tiles, scalar_tiles = ring
    o_tiles, solved, u_tiles, s_tiles = sinks
    o_tile, u_tile, s_tile = staging
    key, d = k_tiles.index(stage), d_tiles.index(stage)
    decays, betas = scalar_tiles.index(stage * 3), scalar_tiles.index(stage * 3 + 1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    snapshot = s.to(gl.bfloat16)
    s = s * gl.exp2(last)
    x = start(snapshot, key.permute((1, 0)))
    tma.store_wait(0)
    gl.thread_barrier()
    if TRACE:
        s_tile.store(snapshot)
    if OUT:
        o_tile.permute((1, 0)).store(done)
    fence_async_shared()
    if TRACE:
        tma.async_copy_shared_to_global(s_tiles, [start_row, 0], s_tile)
    if OUT:
        tma.async_copy_shared_to_global(o_tiles, [former_row, column], o_tile)
        o = start(snapshot, q_tiles.index(stage).permute((1, 0)))
    value = v_tiles.index(stage).permute((1, 0)).load(layout)
    x = warpgroup_mma_wait(1 if OUT else 0, deps=(x,))
    r0 = _final(_base(x, value, decays, betas, 0, rest, MASKED), 0, rest, MASKED)
    x1 = _base(x, value, decays, betas, 1, rest, MASKED)
    x2 = _base(x, value, decays, betas, 2, rest, MASKED)
    x3 = _base(x, value, decays, betas, 3, rest, MASKED)
    x1 = add(r0, corner(c_tiles, stage, 1, 0).permute((1, 0)), x1)
    x2 = add(r0, corner(c_tiles, stage, 2, 0).permute((1, 0)), x2)
    x3 = add(r0, corner(c_tiles, stage, 3, 0).permute((1, 0)), x3)
    u0 = start(r0, d.slice(0, 16).permute((1, 0)))
    if OUT:
        x1, o = warpgroup_mma_wait(3, deps=(x1, o))
    else:
        x1 = warpgroup_mma_wait(3, deps=(x1,))
    r1 = _final(x1, 1, rest, MASKED)
    x2 = add(r1, corner(c_tiles, stage, 2, 1).permute((1, 0)), x2)
    x3 = add(r1, corner(c_tiles, stage, 3, 1).permute((1, 0)), x3)
    u1 = start(r1, d.slice(16, 16).permute((1, 0)))
    if OUT:
        o = o * gl.exp2(scalar_row(decays, 0, 64, rest, MASKED))
        o = add(r0, f_tiles.index(4 * stage).permute((1, 0)), o)
    x2, u0 = warpgroup_mma_wait(3 if OUT else 2, deps=(x2, u0))
    r2 = _final(x2, 2, rest, MASKED)
    x3 = add(r2, corner(c_tiles, stage, 3, 2).permute((1, 0)), x3)
    u2 = start(r2, d.slice(32, 16).permute((1, 0)))
    if TRACE:
        _trace(u0, u_tile, 0)
    s = add(_decayed(u0, decays, last, 0, rest, MASKED), key.slice(0, 16), s)
    if OUT:
        o = add(r1, f_tiles.index(4 * stage + 1).permute((1, 0)), o)
    x3, u1 = warpgroup_mma_wait(3 if OUT else 2, deps=(x3, u1))
    r3 = _final(x3, 3, rest, MASKED)
    u3 = start(r3, d.slice(48, 16).permute((1, 0)))
    if TRACE:
        _trace(u1, u_tile, 1)
    s = add(_decayed(u1, decays, last, 1, rest, MASKED), key.slice(16, 16), s)
    if OUT:
        o = add(r2, f_tiles.index(4 * stage + 2).permute((1, 0)), o)
    u2, u3 = warpgroup_mma_wait(2 if OUT else 1, deps=(u2, u3))
    if TRACE:
        _trace(u2, u_tile, 2)
        _trace(u3, u_tile, 3)
    if OUT:
        o = add(r3, f_tiles.index(4 * stage + 3).permute((1, 0)), o)
    s = add(_decayed(u2, decays, last, 2, rest, MASKED), key.slice(32, 16), s)
    s = add(_decayed(u3, decays, last, 3, rest, MASKED), key.slice(48, 16), s)
    r = joined(r0, r1, r2, r3)
    if OUT:
        own = r.to(gl.float32) * scalar_row(scalar_tiles.index(stage * 3 + 2), 0, 64, rest, MASKED)
        done = ((warpgroup_mma_wait(2, deps=(o,)) + own) * scale).to(gl.bfloat16)
    if TRACE:
        send(u_tile, u_tiles, solved, row, column, rest, STRIDE, MASKED)
    return warpgroup_mma_wait(0, deps=(s,)), done, r
