# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, row form (Triton): one row of a chunk alone, with the bits `gdn_prepare_triton` and
`gdn_scan_triton` give it.

The first launch takes one head of one lane: the row's C and Q from the keys and D of the chunk's earlier rows, then,
by blocks of value columns, R and the output from the bf16 snapshot of the state and the earlier R, which travel into
the L2 during the row's arithmetic. k_t and q_t share one 16-column tile (columns 0-7 and 8-15), so that each dot
serves both. The second launch overlaps the first and waits for it; where rows fill their chunks, it moves the fp32
states on, here by tiles or as `gdn_edge_hopper` does. The tl.sums over an axis each select one element: they round
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .gdn_caches import Caches, strides
from .gdn_edge_hopper import hopper_edge
from .gdn_prepare_triton import BLOCK, CHUNK, LOG2E, _split
from .gdn_scan_triton import _advance

ON_DEVICE = tl.constexpr(not triton.knobs.runtime.interpret)
EDGE_PROGRAMS = 264  # two on each of 132 multiprocessors


@triton.jit
def _fetch(start, elements):
    """Ask for bf16 elements (a multiple of 8) from address `start` on to be in the L2; one thread asks."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; .reg .b32 x; mov.u32 x, %tid.x; setp.eq.u32 p, x, 0; setp.ne.and.u32 p, $2, 0, p; "
        "@p cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }",
        "=r,l,r",
        [start, elements * 2],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _fold_row(x, keys, inverse, k_t, t, G_t, b_t, G, K: tl.constexpr):
    """C_t and Q_t [64,16] bf16 (columns 0-7, 8-15), P_tt, and D_t in two bf16 parts [64], of one head."""
    r = tl.arange(0, CHUNK)
    past = r < t
    duo = tl.arange(0, 16)[None, :]
    is_key = duo < 8
    block = t // BLOCK * BLOCK
    same = (r[:, None] // BLOCK == r[None, :] // BLOCK) & past[:, None]
    key = tl.load(keys + r[:, None] * K + tl.arange(0, K)[None, :], mask=past[:, None], other=0.0)
    d = inverse + r[:, None] * (2 * BLOCK) + r[None, :] % BLOCK
    d_high = tl.load(d, mask=same, other=0.0)
    d_low = tl.load(d + BLOCK, mask=same, other=0.0)
    z = tl.dot(tl.where((r == t)[:, None], k_t[None, :], key), x)
    p = tl.sum(tl.sum(tl.where((duo == 8) & (r == t)[:, None], z, 0.0), 1), 0)
    a = z * tl.exp2(G_t - G)[:, None]
    a = tl.where(past[:, None], tl.where(is_key, a * -b_t, a), 0.0)
    high, low = _split(a)
    low = tl.where(is_key, low, 0.0)
    f = tl.dot(tl.trans(d_high), high)
    f = tl.dot(tl.trans(d_low), high, f)
    f = tl.dot(tl.trans(d_high), low, f)
    d_row = tl.sum(tl.where((duo == 0) & (past & (r >= block))[:, None], f, 0.0), 1)
    d_high, d_low = _split(tl.where(r == t, 1.0, d_row))
    f = tl.where(is_key, f, f + p * (d_high.to(tl.float32) + d_low.to(tl.float32))[:, None])
    f = tl.where(past[:, None] & ((r < block)[:, None] | (duo >= 8)), f, 0.0).to(tl.bfloat16)
    return f, p, d_high, d_low


@triton.jit
def _step_kernel(
    q, k, v, g, beta, out, slots, positions, snapshot, keys, values, residuals, inverse, decay, gates, betas, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
    STATE: tl.constexpr, SNAPSHOT: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, INVERSE: tl.constexpr,
    SCALARS: tl.constexpr,
):  # fmt: skip
    """One row of one head of one lane, and its row of every cache. Null lanes give zeros."""
    if ON_DEVICE:
        gdc_launch_dependents()
    head = tl.program_id(0)
    lane = tl.program_id(1)
    slot = tl.load(slots + lane).to(tl.int64)
    position = tl.load(positions + lane)
    token = lane.to(tl.int64) * HV + head
    value = tl.arange(0, BLOCK_V)
    live = value < V
    if slot > 0:
        t = (position % CHUNK).to(tl.int32)
        snapshot += slot * SNAPSHOT + head * (V * K)
        keys += slot * KEYS + (head // (HV // H)) * (CHUNK * K)
        values += slot * ROWS + head * (CHUNK * V)
        residuals += slot * ROWS + head * (CHUNK * V)
        inverse += slot * INVERSE + head * (CHUNK * 2 * BLOCK)
        scalars = slot * SCALARS + head * CHUNK
        if ON_DEVICE:
            _fetch(snapshot, tl.where(position >= CHUNK, V * K, 0))
            _fetch(residuals, t * V)
        r = tl.arange(0, CHUNK)
        duo = tl.arange(0, 16)[None, :]
        is_key = duo < 8
        column = tl.arange(0, K)
        given = (lane.to(tl.int64) * H + head // (HV // H)) * K + column
        k_t = tl.load(k + given)
        x = tl.where(is_key, k_t[:, None], tl.load(q + given)[:, None])
        g_t = tl.load(g + token)
        b_t = tl.load(beta + token)
        G = tl.load(decay + scalars + r, mask=r < t, other=0.0)
        G_t = tl.load(decay + scalars + t - 1, mask=t > 0, other=0.0) + g_t * LOG2E
        f, p, d_high, d_low = _fold_row(x, keys, inverse, k_t, t, G_t, b_t, G, K)
        e = tl.exp2(G_t)
        s = tl.load(
            snapshot + value[:, None] * K + column[None, :], mask=live[:, None] & (position >= CHUNK), other=0.0
        )
        residual = tl.load(
            residuals + r[:, None] * V + value[None, :], mask=live[None, :] & (r < t)[:, None], other=0.0
        )
        v_t = tl.load(v + token * V + value, mask=live, other=0.0)
        acc = tl.dot(s, x) * e
        acc = tl.where(is_key, (v_t.to(tl.float32)[:, None] - acc) * b_t, acc)
        acc = tl.dot(tl.trans(residual), f, acc)
        r_t = tl.sum(tl.where(duo == 0, acc, 0.0), 1).to(tl.bfloat16)
        o = (tl.sum(tl.where(duo == 8, acc, 0.0), 1) + r_t.to(tl.float32) * p) * scale
        tl.store(out + token * V + value, o.to(tl.bfloat16), mask=live)
        tl.store(residuals + t * V + value, r_t, mask=live)
        tl.store(values + t * V + value, v_t, mask=live)
        own = inverse + t * (2 * BLOCK) + r % BLOCK
        tl.store(own, d_high, mask=r // BLOCK == t // BLOCK)
        tl.store(own + BLOCK, d_low, mask=r // BLOCK == t // BLOCK)
        tl.store(decay + scalars + t, G_t)
        tl.store(gates + scalars + t, g_t)
        tl.store(betas + scalars + t, b_t)
        if head % (HV // H) == 0:
            tl.store(keys + t * K + column, k_t)
    else:
        tl.store(out + token * V + value, tl.zeros((BLOCK_V,), tl.bfloat16), mask=live)


@triton.jit(do_not_specialize=["lanes"])
def _edge_kernel(
    slots, positions, lanes, state, snapshot, keys, residuals, inverse, decay,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
    STATE: tl.constexpr, SNAPSHOT: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, INVERSE: tl.constexpr,
    SCALARS: tl.constexpr,
):  # fmt: skip
    """The state over every chunk that this step filled. The programs share those out: most steps have few or none."""
    i = tl.arange(0, LOOKUP)
    slot_i = tl.load(slots + i, mask=i < lanes, other=0)
    full = ((slot_i > 0) & (tl.load(positions + i, mask=i < lanes, other=0) % CHUNK == CHUNK - 1)).to(tl.int32)
    rank = tl.cumsum(full, 0)
    ITEMS: tl.constexpr = HV * (V // BLOCK_V)
    r = tl.arange(0, CHUNK)
    column = tl.arange(0, K)[None, :]
    same = r[:, None] // BLOCK == r[None, :] // BLOCK
    if ON_DEVICE:
        gdc_wait()
    for item in range(tl.program_id(0), tl.sum(full, 0) * ITEMS, tl.num_programs(0)):
        lane = tl.sum(tl.where((full > 0) & (rank == item // ITEMS + 1), i, 0), 0)
        slot = tl.load(slots + lane).to(tl.int64)
        head = item // (V // BLOCK_V) % HV
        value = item % (V // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)
        scalars = decay + slot * SCALARS + head * CHUNK
        tile = head * (V * K) + value[:, None] * K + column
        s = tl.load(state + slot * STATE + tile, mask=tl.load(positions + lane) >= CHUNK, other=0.0)
        key = tl.load(keys + slot * KEYS + ((head // (HV // H)) * CHUNK + r)[:, None] * K + column)
        residual = tl.load(residuals + slot * ROWS + head * (CHUNK * V) + r[:, None] * V + value[None, :])
        d = inverse + slot * INVERSE + head * (CHUNK * 2 * BLOCK) + r[:, None] * (2 * BLOCK) + r[None, :] % BLOCK
        d = tl.load(d, mask=same, other=0.0)
        u = tl.dot(tl.trans(residual), tl.trans(d))
        s = _advance(s, u, tl.load(scalars + r), tl.load(scalars + CHUNK - 1), key)
        tl.store(state + slot * STATE + tile, s)
        tl.store(snapshot + slot * SNAPSHOT + tile, s.to(tl.bfloat16))


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: Caches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One row of each lane: outputs [B,HV,V]; the caches move on in place. Null lanes (slot <= 0) give zeros."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out, c = torch.empty_like(v), caches
    dims = {"H": heads, "HV": v_heads, "K": key_width, "V": width, **strides(c), "num_stages": 1}
    _step_kernel[(v_heads, lanes)](
        q, k, v, g, beta, out, slots, positions,
        c.snapshot, c.keys, c.values, c.residuals, c.inverse, c.decay, c.gates, c.betas, scale,
        **dims, BLOCK_V=launch["step_block_v"], num_warps=launch["step_warps"], enable_fp_fusion=False,
    )  # fmt: skip
    if launch["scan_schedule"] == "warp_specialised":
        hopper_edge(c, slots, positions)
        return out
    block_v = min(64, width)
    _edge_kernel[(min(EDGE_PROGRAMS, lanes * v_heads * (width // block_v)),)](
        slots, positions, lanes, c.state, c.snapshot, c.keys, c.residuals, c.inverse, c.decay,
        **dims, BLOCK_V=block_v, LOOKUP=triton.next_power_of_2(lanes), num_warps=4, launch_pdl=True,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out
