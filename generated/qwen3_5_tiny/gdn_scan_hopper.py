# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form, on Hopper (Gluon): the pass of `gdn_scan_triton` with the same bits, warp-specialised.

One warp copies the tiles of the next chunks; one warpgroup multiplies, chunk after chunk (`gdn_chunk_hopper`).
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from .gdn_chunk_hopper import solve_chunk
from .gdn_tiles_hopper import copy_tiles, matrix, scalar_vector, send
from .hopper_rows import advance, zero_past

SHARED_BYTES = 226 << 10  # of the 227 KiB a program may have; the rest holds barriers
BEYOND = gl.constexpr(1 << 30)  # a row that no matrix has: nothing is written there


@gluon.jit
def _multiply(ring, ready, empty, out, sinks, staging, place, caches, unit, head, value, begin, rows, scalars, scale,
              HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr, OUT: gl.constexpr, RESUME: gl.constexpr,
              KEEP: gl.constexpr, FLUSH: gl.constexpr, OPEN: gl.constexpr, TRACE: gl.constexpr,
              STATE: gl.constexpr, SNAPSHOT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr):  # fmt: skip
    state, snapshot, residuals = caches
    slot, resumed = place
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, K, 16])
    square: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    wide: gl.constexpr = gl.BlockedLayout([1, 8], [256 // K, K // 8], [4, 1], [1, 0])
    inner = (value + gl.arange(0, 64, gl.SliceLayout(1, layout)))[:, None] * K
    inner = inner + gl.arange(0, K, gl.SliceLayout(0, layout))[None, :]
    own = gl.maximum(slot, 0).to(gl.int64)
    state += own * STATE + head * (V * K)
    column = head * V + value
    s = gl.zeros([64, K], gl.float32, layout)
    if RESUME:
        s = gl.load(state + inner, mask=resumed, other=0.0)
    done = gl.zeros([64, 64], gl.bfloat16, square)
    stage = 0
    phase = 0
    former_row = BEYOND
    full = rows // 64
    rest = rows - full * 64
    last = gl.load(scalars + unit.to(gl.int64) * 192 + 63, mask=full > 0, other=0.0)
    for i in range(full):
        following = gl.load(scalars + (unit + (i + 1) * HV).to(gl.int64) * 192 + 63, mask=i + 1 < full, other=0.0)
        mbarrier.wait(ready.index(stage), phase)
        row = begin + i * 64
        s, done, _ = solve_chunk(s, done, ring, stage, sinks, staging, row, column, (unit + i * HV) * V + value,
                                 former_row, last, 64, scale, HV * V, OUT, TRACE, False)  # fmt: skip
        mbarrier.arrive(empty.index(stage))
        former_row = row
        stage, phase = advance(stage, phase, STAGES)
        last = following
    if rest > 0:
        mbarrier.wait(ready.index(stage), phase)
        unit += full * HV
        row = begin + full * 64
        last = gl.load(scalars + unit.to(gl.int64) * 192 + rest - 1)
        if FLUSH:
            zero_past(ring[1].index(stage), rest, wide)
        after, done, r = solve_chunk(s, done, ring, stage, sinks, staging, row, column, unit * V + value, former_row,
                                     last, rest, scale, HV * V, OUT, TRACE, True)  # fmt: skip
        if FLUSH:
            s = after
        if KEEP and OPEN:
            t = gl.arange(0, 64, gl.SliceLayout(0, square))[None, :]
            cells = t * V + value + gl.arange(0, 64, gl.SliceLayout(1, square))[:, None]
            gl.store(residuals + own * ROWS + head * (64 * V) + cells, r, mask=(t < rest) & (slot > 0))
        former_row = row
    if OUT:
        tma.store_wait(0)
        gl.thread_barrier()
        staging[0].permute((1, 0)).store(done)
        if rest > 0:
            send(staging[0], sinks[0], out, former_row, column, rest, HV * V, True)
        else:
            send(staging[0], sinks[0], out, former_row, column, rest, HV * V, False)
    if KEEP:
        gl.store(state + inner, s, mask=(slot > 0) & (rows > 0))
        if OPEN:
            gl.store(
                snapshot + own * SNAPSHOT + head * (V * K) + inner, s.to(gl.bfloat16), mask=(slot > 0) & (rows > 0)
            )
    tma.store_wait(0)


@gluon.jit
def _hopper_scan_kernel(
    q, k, v, d, c, f, scalar_rows, o_tiles, u_tiles, s_tiles, scalars, out, solved, cu_seqlens, state, snapshot,
    residuals, slots, origin, scale,
    H: gl.constexpr, HV: gl.constexpr, K: gl.constexpr, V: gl.constexpr,
    OUT: gl.constexpr, RESUME: gl.constexpr, KEEP: gl.constexpr, FLUSH: gl.constexpr, OPEN: gl.constexpr,
    TRACE: gl.constexpr, STATE: gl.constexpr, SNAPSHOT: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As `_scan_kernel`, for one head and 64 value columns of one sequence."""
    value = gl.program_id(0) * 64
    sequence = gl.program_id(1) // HV
    head = gl.program_id(1) % HV
    begin = gl.load(cu_seqlens + sequence)
    rows = gl.load(cu_seqlens + sequence + 1) - begin
    slot = 0
    resumed = False
    if RESUME or KEEP:
        slot = gl.load(slots + sequence)
    if RESUME:
        resumed = (gl.load(origin + sequence) > 0) & (slot > 0)
    ring = (
        gl.allocate_shared_memory(gl.bfloat16, [STAGES if OUT else 1, 64, K], k.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, K], k.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 64], v.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES, 64, 16], d.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4, 64, 16], c.layout),
        gl.allocate_shared_memory(gl.bfloat16, [STAGES * 4 if OUT else 1, 64, 16], f.layout),
        gl.allocate_shared_memory(gl.float32, [STAGES * 3, 64], scalar_rows.layout),
    )
    staging = (
        gl.allocate_shared_memory(gl.bfloat16, [64 if OUT else 8, 64], o_tiles.layout),
        gl.allocate_shared_memory(gl.bfloat16, [64 if TRACE else 8, 64], u_tiles.layout),
        gl.allocate_shared_memory(gl.bfloat16, [64 if TRACE else 8, K], s_tiles.layout),
    )
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    unit = (begin // 64 + sequence) * HV + head
    sinks = (o_tiles, solved, u_tiles, s_tiles)
    gl.warp_specialize(
        [
            (_multiply, (ring, ready, empty, out, sinks, staging, (slot, resumed), (state, snapshot, residuals), unit,
                         head, value, begin, rows, scalars, scale, HV, K, V, OUT, RESUME, KEEP, FLUSH, OPEN, TRACE,
                         STATE, SNAPSHOT, ROWS, STAGES)),
            (copy_tiles, ((q, k, v, d, c, f, scalar_rows), ring, ready, empty, begin, 0, 1, (rows + 63) // 64, unit,
                          head, head // (HV // H), head * V + value, HV, OUT, STAGES)),
        ],
        [1],
        [24],
    )  # fmt: skip


def hopper_scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: tuple[torch.Tensor, ...], cu_seqlens: torch.Tensor,
    scale: float, sinks: tuple[torch.Tensor, ...], caches: tuple[torch.Tensor, ...],
    slots: torch.Tensor, origin: torch.Tensor, **parts: int,
) -> None:  # fmt: skip
    """The launch of `gdn_scan_triton.scan`, into outputs, states before every chunk, and U."""
    (heads, width), (v_heads, values) = k.shape[1:], v.shape[1:]
    scalars, inverse, coupling, readout = prepared
    out, starts, solved = sinks
    stage = 128 * (width + 64 + 80) + 768 + 128 * (width + 64) * parts["OUT"]
    stages = min(4, (SHARED_BYTES - 64 * (256 + 2 * width)) // stage)
    _hopper_scan_kernel[(values // 64, (cu_seqlens.shape[0] - 1) * v_heads)](
        matrix(q, 64, width), matrix(k, 64, width), matrix(v, 64, 64), matrix(inverse, 64, 16),
        matrix(coupling, 64, 16), matrix(readout, 64, 16), scalar_vector(scalars),
        matrix(out, 64, 64), matrix(solved, 64, 64), matrix(starts.view(-1, starts.shape[-1]), 64, starts.shape[-1]),
        scalars, out, solved, cu_seqlens, *caches, slots, origin, scale,
        H=heads, HV=v_heads, K=width, V=values, **parts, STAGES=stages, num_warps=4, maxnreg=240,
        enable_fp_fusion=False,
    )  # fmt: skip
