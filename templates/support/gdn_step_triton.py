# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, row form (Triton): one row of a chunk alone, with the bits `gdn_prepare_triton` gives it.

The state S is read as its bf16 snapshot; K, R, D and G of the chunk's earlier rows come from the caches and row t is
appended. k_t and q_t share one 16-row tile (rows 0-7 and 8-15), so that each dot serves both. A full chunk (t = 63)
moves the fp32 state on and renews the snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_caches import Caches
from .gdn_prepare_triton import BLOCK, CHUNK, LOG2E, _split
from .gdn_scan_triton import _advance

EDGE_V = tl.constexpr(32)


@triton.jit
def _step_kernel(
    q, k, v, g, beta, out, slots, positions,
    state, snapshot, keys, values, residuals, inverse, decay, gates, betas, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    lane = tl.program_id(2)
    head = tl.program_id(1)
    slot = tl.load(slots + lane)
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    token = lane.to(tl.int64) * HV + head
    if slot <= 0:
        tl.store(out + token * V + value, tl.zeros((BLOCK_V,), tl.bfloat16))
    else:
        position = tl.load(positions + lane)
        t = (position % CHUNK).to(tl.int32)
        block = t // BLOCK * BLOCK
        unit = slot.to(tl.int64) * HV + head
        column = tl.arange(0, K)
        r = tl.arange(0, CHUNK)
        past = r < t
        row = tl.arange(0, 16)[:, None]
        is_key = row < 8
        shared = lane.to(tl.int64) * H + head // (HV // H)
        store = (slot.to(tl.int64) * H + head // (HV // H)) * (CHUNK * K)
        tile = unit * (V * K) + value[:, None] * K + column[None, :]
        rows_v = unit * (CHUNK * V) + r[:, None] * V + value[None, :]

        s = tl.load(snapshot + tile, mask=position >= CHUNK, other=0.0)
        key = tl.load(keys + store + r[:, None] * K + column[None, :], mask=past[:, None], other=0.0)
        residual = tl.load(residuals + rows_v, mask=past[:, None], other=0.0)
        same = (r[:, None] // BLOCK == r[None, :] // BLOCK) & past[:, None]
        d = inverse + unit * (CHUNK * 2 * BLOCK) + r[:, None] * (2 * BLOCK) + r[None, :] % BLOCK
        d_high = tl.load(d, mask=same, other=0.0)
        d_low = tl.load(d + BLOCK, mask=same, other=0.0)
        G = tl.load(decay + unit * CHUNK + r, mask=past, other=0.0)
        before = tl.load(decay + unit * CHUNK + t - 1, mask=t > 0, other=0.0)
        k_t = tl.load(k + shared * K + column)
        q_t = tl.load(q + shared * K + column)
        v_t = tl.load(v + token * V + value)
        g_t = tl.load(g + token)
        b_t = tl.load(beta + token)

        G_t = before + g_t * LOG2E
        G = tl.where(r == t, G_t, G)
        key = tl.where((r == t)[:, None], k_t[None, :], key)
        x = tl.where(is_key, k_t[None, :], q_t[None, :])
        z = tl.dot(x, tl.trans(key))
        own = tl.sum(tl.sum(tl.where((row == 8) & (r == t)[None, :], z, 0.0), 0), 0)
        a = z * tl.exp2(G_t - G)[None, :]
        a = tl.where(past[None, :], tl.where(is_key, a * -b_t, a), 0.0)
        high, low = _split(a)
        f = tl.dot(high, d_high)
        f = tl.dot(high, d_low, f)
        f = tl.dot(tl.where(is_key, low, 0.0), d_high, f)
        d_t = tl.sum(tl.where((row == 0) & (past & (r >= block))[None, :], f, 0.0), 0)
        d_t = tl.where(r == t, 1.0, d_t)
        d_t_high, d_t_low = _split(d_t)
        f = tl.where(is_key, f, f + own * (d_t_high.to(tl.float32) + d_t_low.to(tl.float32))[None, :])
        f = tl.where(past[None, :] & ((r < block)[None, :] | (row >= 8)), f, 0.0).to(tl.bfloat16)

        e = tl.exp2(G_t)
        acc = tl.dot(x, tl.trans(s)) * e
        acc = tl.where(is_key, (v_t.to(tl.float32)[None, :] - acc) * b_t, acc)
        acc = tl.dot(f, residual, acc)
        r_t = tl.sum(tl.where(row == 0, acc, 0.0), 0).to(tl.bfloat16)
        o = ((acc + r_t.to(tl.float32)[None, :] * own) * scale).to(tl.bfloat16)
        tl.store(out + token * V + value[None, :] + row * 0, o, mask=row == 8)

        tl.store(residuals + unit * (CHUNK * V) + t * V + value, r_t)
        tl.store(values + unit * (CHUNK * V) + t * V + value, v_t)
        if tl.program_id(0) == 0:
            row_d = inverse + unit * (CHUNK * 2 * BLOCK) + t * (2 * BLOCK) + r - block
            here = (r >= block) & (r < block + BLOCK)
            tl.store(row_d, d_t_high, mask=here)
            tl.store(row_d + BLOCK, d_t_low, mask=here)
            tl.store(decay + unit * CHUNK + t, G_t)
            tl.store(gates + unit * CHUNK + t, g_t)
            tl.store(betas + unit * CHUNK + t, b_t)
            if head % (HV // H) == 0:
                tl.store(keys + store + t * K + column, k_t)
        if t == CHUNK - 1:
            tl.debug_barrier()
            d_full = tl.where((r == t)[:, None] & (r >= block)[None, :], d_t_high[None, :], d_high)
            for i in range(BLOCK_V // EDGE_V):
                part = tl.program_id(0) * BLOCK_V + i * EDGE_V + tl.arange(0, EDGE_V)
                tile_s = unit * (V * K) + part[:, None] * K + column[None, :]
                r_full = tl.load(residuals + unit * (CHUNK * V) + r[None, :] * V + part[:, None])
                chain = tl.load(state + tile_s, mask=position >= CHUNK, other=0.0)
                chain = _advance(chain, tl.dot(r_full, tl.trans(d_full)), G, G_t, key)
                tl.store(state + tile_s, chain)
                tl.store(snapshot + tile_s, chain.to(tl.bfloat16))


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: Caches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One row of each lane: outputs [B,HV,V]; the caches move on in place. Null lanes (slot <= 0) give zeros."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out = torch.empty_like(v)
    block_v = min(launch["step_block_v"], width)
    _step_kernel[(width // block_v, v_heads, lanes)](
        q, k, v, g, beta, out, slots, positions, *caches, scale,
        H=heads, HV=v_heads, K=key_width, V=width, BLOCK_V=block_v,
        num_warps=launch["step_warps"], num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out
