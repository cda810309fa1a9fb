# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, row form (Triton): one row of a chunk alone, with the bits `gdn_prepare_triton` and
`gdn_scan_triton` give it.

Three launches: the row's C and Q from the keys and D of the chunk's earlier rows; the row's R and output from the bf16
snapshot of the state and the earlier R; and, where a row fills its chunk, the fp32 state and its snapshot. k_t and q_t
share one 16-row tile (rows 0-7 and 8-15), so that each dot serves both; heads that share a key head share the first
launch's tile, 8 / group rows each. With OVERLAP the second and third launch start before the one ahead of them ends,
load what it does not write, and wait for it. The tl.sums over an axis each select one element: they round nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .gdn_caches import Caches, strides
from .gdn_prepare_triton import BLOCK, CHUNK, LOG2E, _split
from .gdn_scan_triton import _advance

OVERLAP = False


@triton.jit
def _row_kernel(
    q, k, g, beta, rows, own, slots, positions, keys, inverse, decay, gates, betas,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, KEYS: tl.constexpr, INVERSE: tl.constexpr,
    SCALARS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """C_t and Q_t of the value heads of one key head to `rows` [B,HV,2,64], P_tt to `own`; D_t, G_t, k_t appended."""
    GROUP: tl.constexpr = HV // H
    if OVERLAP:
        gdc_launch_dependents()
    shared = tl.program_id(0)
    lane = tl.program_id(1)
    slot = tl.load(slots + lane)
    if slot > 0:
        t = (tl.load(positions + lane) % CHUNK).to(tl.int32)
        block = t // BLOCK * BLOCK
        r = tl.arange(0, CHUNK)
        past = r < t
        row = tl.arange(0, 16)
        is_key = (row < 8)[:, None]
        member = row % 8 // (8 // GROUP)
        leads = row % (8 // GROUP) == 0
        column = tl.arange(0, K)
        head = shared * GROUP + member
        scalars = slot.to(tl.int64) * SCALARS + head * CHUNK
        token = lane.to(tl.int64) * HV + head
        store = slot.to(tl.int64) * KEYS + shared * (CHUNK * K)
        given = (lane.to(tl.int64) * H + shared) * K + column

        key = tl.load(keys + store + r[:, None] * K + column[None, :], mask=past[:, None], other=0.0)
        G = tl.load(decay + scalars[:, None] + r[None, :], mask=past[None, :], other=0.0)
        before = tl.load(decay + scalars + t - 1, mask=(row >= 0) & (t > 0), other=0.0)
        g_t = tl.load(g + token)
        b_t = tl.load(beta + token)
        k_t = tl.load(k + given)
        q_t = tl.load(q + given)

        G_t = before + g_t * LOG2E
        key = tl.where((r == t)[:, None], k_t[None, :], key)
        z = tl.dot(tl.where(is_key, k_t[None, :], q_t[None, :]), tl.trans(key))
        p = tl.sum(tl.sum(tl.where((row == 8)[:, None] & (r == t)[None, :], z, 0.0), 0), 0)
        a = z * tl.exp2(G_t[:, None] - G)
        a = tl.where(past[None, :], tl.where(is_key, a * -b_t[:, None], a), 0.0)
        high, low = _split(a)
        low = tl.where(is_key, low, 0.0)
        same = (r[:, None] // BLOCK == r[None, :] // BLOCK) & past[:, None]
        f = tl.zeros((16, CHUNK), tl.float32)
        inverse += slot.to(tl.int64) * INVERSE
        d = inverse + shared * (GROUP * CHUNK * 2 * BLOCK)
        d += r[:, None] * (2 * BLOCK) + r[None, :] % BLOCK
        for j in tl.static_range(GROUP):
            d_high = tl.load(d + j * (CHUNK * 2 * BLOCK), mask=same, other=0.0)
            d_low = tl.load(d + j * (CHUNK * 2 * BLOCK) + BLOCK, mask=same, other=0.0)
            mine = (member == j)[:, None]
            a_high = tl.where(mine, high, 0.0)
            f = tl.dot(a_high, d_high, f)
            f = tl.dot(a_high, d_low, f)
            f = tl.dot(tl.where(mine, low, 0.0), d_high, f)
        d_row = tl.zeros((16, CHUNK), tl.float32)
        for j in tl.static_range(GROUP):
            lead = (row == j * (8 // GROUP))[:, None] & (past & (r >= block))[None, :]
            d_row = tl.where((member == j)[:, None], tl.sum(tl.where(lead, f, 0.0), 0)[None, :], d_row)
        d_high, d_low = _split(tl.where((r == t)[None, :], 1.0, d_row))
        f = tl.where(is_key, f, f + p * (d_high.to(tl.float32) + d_low.to(tl.float32)))
        f = tl.where(past[None, :] & ((r < block)[None, :] | (row >= 8)[:, None]), f, 0.0).to(tl.bfloat16)
        place = rows + (token * 2 + row // 8)[:, None] * CHUNK + r[None, :]
        tl.store(place, f, mask=leads[:, None])
        lead = leads & (row < 8)
        here = lead[:, None] & ((r >= block) & (r < block + BLOCK))[None, :]
        place = inverse + (head * CHUNK + t)[:, None] * (2 * BLOCK) + (r - block)[None, :]
        tl.store(place, d_high, mask=here)
        tl.store(place + BLOCK, d_low, mask=here)
        tl.store(own + token, tl.zeros((16,), tl.float32) + p, mask=lead)
        tl.store(decay + scalars + t, G_t, mask=lead)
        tl.store(gates + scalars + t, g_t, mask=lead)
        tl.store(betas + scalars + t, b_t, mask=lead)
        tl.store(keys + store + t * K + column, k_t)


@triton.jit
def _read_kernel(
    q, k, v, beta, rows, own, out, slots, positions, snapshot, values, residuals, decay, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, SNAPSHOT: tl.constexpr,
    ROWS: tl.constexpr, SCALARS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """R_t and o_t of one head and a block of value columns; R_t and v_t appended. Null lanes give zeros."""
    if OVERLAP:
        gdc_launch_dependents()
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    lane = tl.program_id(2)
    slot = tl.load(slots + lane)
    token = lane.to(tl.int64) * HV + head
    if slot > 0:
        position = tl.load(positions + lane)
        t = (position % CHUNK).to(tl.int32)
        kept = slot.to(tl.int64) * ROWS + head * (CHUNK * V) + value
        scalars = slot.to(tl.int64) * SCALARS + head * CHUNK
        r = tl.arange(0, CHUNK)
        row = tl.arange(0, 16)[:, None]
        is_key = row < 8
        column = tl.arange(0, K)
        tile = slot.to(tl.int64) * SNAPSHOT + head * (V * K) + value[:, None] * K + column[None, :]
        cells = kept[None, :] + r[:, None] * V
        given = (lane.to(tl.int64) * H + head // (HV // H)) * K + column

        s = tl.load(snapshot + tile, mask=position >= CHUNK, other=0.0)
        residual = tl.load(residuals + cells, mask=(r < t)[:, None], other=0.0)
        x = tl.where(is_key, tl.load(k + given)[None, :], tl.load(q + given)[None, :])
        v_t = tl.load(v + token * V + value)
        if OVERLAP:
            gdc_wait()
        e = tl.exp2(tl.load(decay + scalars + t))
        f = tl.load(rows + (token * 2 + row // 8) * CHUNK + r[None, :])
        acc = tl.dot(x, tl.trans(s)) * e
        acc = tl.where(is_key, (v_t.to(tl.float32)[None, :] - acc) * tl.load(beta + token), acc)
        acc = tl.dot(f, residual, acc)
        r_t = tl.sum(tl.where(row == 0, acc, 0.0), 0).to(tl.bfloat16)
        o = ((acc + r_t.to(tl.float32)[None, :] * tl.load(own + token)) * scale).to(tl.bfloat16)
        tl.store(out + token * V + value[None, :] + row * 0, o, mask=row == 8)
        tl.store(residuals + kept + t * V, r_t)
        tl.store(values + kept + t * V, v_t)
    else:
        if OVERLAP:
            gdc_wait()
        tl.store(out + token * V + value, tl.zeros((BLOCK_V,), tl.bfloat16))


@triton.jit(do_not_specialize=["lanes"])
def _edge_kernel(
    slots, positions, lanes, state, snapshot, keys, residuals, inverse, decay,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
    STATE: tl.constexpr, SNAPSHOT: tl.constexpr, KEYS: tl.constexpr, ROWS: tl.constexpr, INVERSE: tl.constexpr,
    SCALARS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The state over every chunk that this step filled. The programs share those out: most steps have few or none."""
    i = tl.arange(0, LOOKUP)
    slot_i = tl.load(slots + i, mask=i < lanes, other=0)
    full = ((slot_i > 0) & (tl.load(positions + i, mask=i < lanes, other=0) % CHUNK == CHUNK - 1)).to(tl.int32)
    rank = tl.cumsum(full, 0)
    items = tl.sum(full, 0) * (HV * (V // BLOCK_V))
    r = tl.arange(0, CHUNK)
    column = tl.arange(0, K)[None, :]
    same = r[:, None] // BLOCK == r[None, :] // BLOCK
    if OVERLAP:
        gdc_wait()
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        lane = tl.sum(tl.where((full > 0) & (rank == item // (HV * (V // BLOCK_V)) + 1), i, 0), 0)
        head = item // (V // BLOCK_V) % HV
        value = item % (V // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)
        slot = tl.load(slots + lane).to(tl.int64)
        scalars = decay + slot * SCALARS + head * CHUNK
        tile = head * (V * K) + value[:, None] * K + column
        s = tl.load(state + slot * STATE + tile, mask=tl.load(positions + lane) >= CHUNK, other=0.0)
        key = tl.load(keys + slot * KEYS + ((head // (HV // H)) * CHUNK + r)[:, None] * K + column)
        residual = tl.load(residuals + slot * ROWS + head * (CHUNK * V) + r[:, None] * V + value[None, :])
        d = inverse + slot * INVERSE + head * (CHUNK * 2 * BLOCK) + r[:, None] * (2 * BLOCK) + r[None, :] % BLOCK
        d = tl.load(d, mask=same, other=0.0)
        G = tl.load(scalars + r)
        u = tl.dot(tl.trans(residual), tl.trans(d))
        s = _advance(s, u, G, tl.load(scalars + CHUNK - 1), key)
        tl.store(state + slot * STATE + tile, s)
        tl.store(snapshot + slot * SNAPSHOT + tile, s.to(tl.bfloat16))


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: Caches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One row of each lane: outputs [B,HV,V]; the caches move on in place. Null lanes (slot <= 0) give zeros."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out, own = torch.empty_like(v), torch.empty_like(g)
    rows = q.new_empty((lanes, v_heads, 2, 64))
    block_v = min(launch["step_block_v"], width)
    overlap = OVERLAP and q.is_cuda
    dims = {"H": heads, "HV": v_heads, "K": key_width, "OVERLAP": overlap, "num_stages": 1, "enable_fp_fusion": False}
    c, at = caches, strides(caches)
    _row_kernel[(heads, lanes)](
        q, k, g, beta, rows, own, slots, positions, c.keys, c.inverse, c.decay, c.gates, c.betas,
        **dims, KEYS=at["KEYS"], INVERSE=at["INVERSE"], SCALARS=at["SCALARS"], num_warps=launch["row_warps"],
    )  # fmt: skip
    _read_kernel[(width // block_v, v_heads, lanes)](
        q, k, v, beta, rows, own, out, slots, positions, c.snapshot, c.values, c.residuals, c.decay, scale,
        **dims, V=width, BLOCK_V=block_v, SNAPSHOT=at["SNAPSHOT"], ROWS=at["ROWS"], SCALARS=at["SCALARS"],
        num_warps=launch["step_warps"], launch_pdl=overlap,
    )  # fmt: skip
    block_v = min(64, width)
    _edge_kernel[(min(264, lanes * v_heads * (width // block_v)),)](
        slots, positions, lanes, c.state, c.snapshot, c.keys, c.residuals, c.inverse, c.decay,
        **dims, **at, V=width, BLOCK_V=block_v, LOOKUP=triton.next_power_of_2(lanes), num_warps=4,
        launch_pdl=overlap,
    )  # fmt: skip
    return out
