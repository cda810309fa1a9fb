# SPDX-License-Identifier: Apache-2.0
"""Backward of the chunk form on Hopper (Gluon): the pass from the last chunk to the first of `gdn_backward_triton`.

As in `gdn_scan_hopper`: one warp copies tiles, one warpgroup multiplies and solves by blocks, here from the last.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma_wait,
)

from .gdn_tiles_hopper import add, block, copy_tiles, corner, joined, matrix, scalar_row, scalar_vector, send, start
from .hopper_rows import advance, zero_past

SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers
NEVER = gl.constexpr(float("-inf"))  # log2 of what a chunk without its last row leaves to the next: nothing


@gluon.jit
def _read(do, decays, B: gl.constexpr, scale, rest, MASKED: gl.constexpr):
    """A block of dO times scale exp2(G)."""
    weight = gl.exp2(scalar_row(decays, 16 * B, 16, rest, MASKED)) * scale
    return (block(do, B).to(gl.float32) * weight).to(gl.bfloat16)


@gluon.jit
def _reverse(ds, ring, stage, sinks, staging, row, column, start_row, last, rest, scale, STRIDE: gl.constexpr,
             MASKED: gl.constexpr):  # fmt: skip
    """One chunk from dS' = ds [64, K]: stores ds and dB, returns dS."""
    q_tiles, k_tiles, g_tiles, d_tiles, c_tiles, f_tiles, scalar_tiles = ring
    base, b_tiles, e_tiles = sinks
    b_tile, e_tile = staging
    query, key, d = q_tiles.index(stage), k_tiles.index(stage), d_tiles.index(stage)
    decays, betas = scalar_tiles.index(stage * 3), scalar_tiles.index(stage * 3 + 1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    tma.store_wait(0)
    gl.thread_barrier()
    passed = ds.to(gl.bfloat16)
    ds = ds * gl.exp2(last)
    do = g_tiles.index(stage).permute((1, 0)).load(layout)
    u = start(passed, key.permute((1, 0)))
    x = start(do, f_tiles.index(stage))
    e_tile.store(passed)
    fence_async_shared()
    tma.async_copy_shared_to_global(e_tiles, [start_row, 0], e_tile)
    w = gl.exp2(last - scalar_row(decays, 0, 64, rest, MASKED))
    u = warpgroup_mma_wait(1, deps=(u,))
    u = (u * w).to(gl.bfloat16)
    p0 = start(block(u, 0), d.slice(0, 16))
    p1 = start(block(u, 1), d.slice(16, 16))
    p2 = start(block(u, 2), d.slice(32, 16))
    p3 = start(block(u, 3), d.slice(48, 16))
    ds = add(_read(do, decays, 0, scale, rest, MASKED), query.slice(0, 16), ds)
    x, p0, p1, p2, p3 = warpgroup_mma_wait(1, deps=(x, p0, p1, p2, p3))
    own = do.to(gl.float32) * scalar_row(scalar_tiles.index(stage * 3 + 2), 0, 64, rest, MASKED)
    x = (x + own) * scale
    y3 = block(x, 3) + p3
    r3 = y3.to(gl.bfloat16)
    x2 = add(r3, corner(c_tiles, stage, 3, 2), block(x, 2) + p2)
    x1 = add(r3, corner(c_tiles, stage, 3, 1), block(x, 1) + p1)
    x0 = add(r3, corner(c_tiles, stage, 3, 0), block(x, 0) + p0)
    ds = add(_read(do, decays, 1, scale, rest, MASKED), query.slice(16, 16), ds)
    x2 = warpgroup_mma_wait(3, deps=(x2,))
    r2 = x2.to(gl.bfloat16)
    x1 = add(r2, corner(c_tiles, stage, 2, 1), x1)
    x0 = add(r2, corner(c_tiles, stage, 2, 0), x0)
    ds = add(_read(do, decays, 2, scale, rest, MASKED), query.slice(32, 16), ds)
    ds = add(_weighed(y3, decays, betas, 48, rest, MASKED), key.slice(48, 16), ds)
    x1 = warpgroup_mma_wait(3, deps=(x1,))
    r1 = x1.to(gl.bfloat16)
    x0 = add(r1, corner(c_tiles, stage, 1, 0), x0)
    ds = add(_read(do, decays, 3, scale, rest, MASKED), query.slice(48, 16), ds)
    ds = add(_weighed(x2, decays, betas, 32, rest, MASKED), key.slice(32, 16), ds)
    x0 = warpgroup_mma_wait(2, deps=(x0,))
    r0 = x0.to(gl.bfloat16)
    ds = add(_weighed(x1, decays, betas, 16, rest, MASKED), key.slice(16, 16), ds)
    ds = add(_weighed(x0, decays, betas, 0, rest, MASKED), key.slice(0, 16), ds)
    y = joined(r0, r1, r2, r3)
    b_tile.permute((1, 0)).store(y)
    send(b_tile, b_tiles, base, row, column, rest, STRIDE, MASKED)
    return warpgroup_mma_wait(0, deps=(ds,))


@gluon.jit
def _weighed(y, decays, betas, FIRST: gl.constexpr, rest, MASKED: gl.constexpr):
    """y times -beta exp2(G), by column."""
    weight = gl.exp2(scalar_row(decays, FIRST, 16, rest, MASKED)) * -scalar_row(betas, FIRST, 16, rest, MASKED)
    return (y * weight).to(gl.bfloat16)


@gluon.jit
def _multiply(ring, ready, empty, sinks, staging, unit, head, value, begin, rows, scalars, scale,
              HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    q_tiles, k_tiles, g_tiles, d_tiles, c_tiles, f_tiles, _ = ring
    ds = gl.zeros([64, K], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16]))
    stage = 0
    phase = 0
    full = rows // 64
    rest = rows - full * 64
    if rest > 0:
        mbarrier.wait(ready.index(stage), phase)
        across: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K, K // 8], [4, 1], [1, 0])
        narrow: gl.constexpr = gl.BlockedLayout([1, 8], [16, 2], [4, 1], [1, 0])
        square: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
        zero_past(q_tiles.index(stage), rest, across)
        zero_past(k_tiles.index(stage), rest, across)
        zero_past(g_tiles.index(stage), rest, square)
        for b in gl.static_range(4):
            zero_past(c_tiles.index(4 * stage + b), rest, narrow)
        zero_past(f_tiles.index(stage), rest, square)
        zero_past(d_tiles.index(stage), rest, narrow)
        ds = _reverse(ds, ring, stage, sinks, staging, begin + full * 64, head * V + value,
                      (unit + full * HV) * V + value, NEVER, rest, scale, HV * V, True)  # fmt: skip
        mbarrier.arrive(empty.index(stage))
        stage, phase = advance(stage, phase, STAGES)
    last = gl.load(scalars + (unit + (full - 1) * HV).to(gl.int64) * 192 + 63, mask=full > 0, other=0.0)
    for i in range(full):
        chunk = full - 1 - i
        following = gl.load(scalars + (unit + (chunk - 1) * HV).to(gl.int64) * 192 + 63, mask=chunk > 0, other=0.0)
        mbarrier.wait(ready.index(stage), phase)
        ds = _reverse(ds, ring, stage, sinks, staging, begin + chunk * 64, head * V + value,
                      (unit + chunk * HV) * V + value, last, 64, scale, HV * V, False)  # fmt: skip
        mbarrier.arrive(empty.index(stage))
        stage, phase = advance(stage, phase, STAGES)
        last = following
    tma.store_wait(0)


@gluon.jit
def _hopper_reverse_kernel(
    q, k, g, d, c, f, scalar_rows, b_tiles, e_tiles, scalars, base, cu_seqlens, scale,
    H: gl.constexpr, HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `_reverse_kernel`, for one head and 64 value columns of one sequence."""
    value = gl.program_id(0) * 64
    sequence = gl.program_id(1) // HV
    head = gl.program_id(1) % HV
    begin = gl.load(cu_seqlens + sequence)
    rows = gl.load(cu_seqlens + sequence + 1) - begin
    ring = (
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, K], q.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, K], k.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], g.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 16], d.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4, 64, 16], c.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], f.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES * 3, 64], scalar_rows.layout),
    )
    staging = (
        gl.allocate_shared_memory(gl.bfloat16, [64, 64], b_tiles.layout),
        gl.allocate_shared_memory(gl.bfloat16, [64, K], e_tiles.layout),
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    unit = (begin // 64 + sequence) * HV + head
    chunks = (rows + 63) // 64
    gl.warp_specialize(
        [
            (_multiply, (ring, ready, empty, (base, b_tiles, e_tiles), staging, unit, head, value, begin, rows,
                         scalars, scale, HV, K, V, STAGES)),
            (copy_tiles, ((q, k, g, d, c, f, scalar_rows), ring, ready, empty, begin, chunks - 1, -1, chunks, unit,
                          head, head // (HV // H), head * V + value, HV, True, STAGES)),
        ],
        [1],
        [24],
    )  # fmt: skip


def hopper_reverse(
    q: torch.Tensor, k: torch.Tensor, prepared: tuple[torch.Tensor, ...], grad: torch.Tensor,
    cu_seqlens: torch.Tensor, scale: float, ends: torch.Tensor, base: torch.Tensor,
) -> None:  # fmt: skip
    """dB of every row to `base` [T,HV,V] and dS' of every chunk to `ends` [T//64+B,HV,V,K]."""
    (heads, width), (v_heads, values) = k.shape[1:], grad.shape[1:]
    scalars, inverse, coupling, readout = prepared
    stage = 256 * (width + 64 + 72) + 768
    stages = min(4, (SHARED_BYTES - 128 * (width + 64)) // stage)
    _hopper_reverse_kernel[(values // 64, (cu_seqlens.shape[0] - 1) * v_heads)](
        matrix(q, 64, width), matrix(k, 64, width), matrix(grad, 64, 64), matrix(inverse, 64, 16),
        matrix(coupling, 64, 16), matrix(readout, 64, 64), scalar_vector(scalars), matrix(base, 64, 64),
        matrix(ends.view(-1, width), 64, width), scalars, base, cu_seqlens, scale,
        H=heads, HV=v_heads, K=width, V=values, STAGES=stages, num_warps=4, maxnreg=240, enable_fp_fusion=False,
    )  # fmt: skip
