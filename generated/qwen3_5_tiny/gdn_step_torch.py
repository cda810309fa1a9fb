# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, row form on the CPU target: one row of a chunk alone, as in `gdn_step_triton`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gdn_caches import Caches
from .gdn_prepare_torch import fold
from .gdn_scan_torch import advance
from .gdn_tiles_torch import BLOCK, CHUNK, LOG2E, block_diagonal, dot, exp2, split, spread


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: Caches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One row of each lane: outputs [B,HV,V]; the caches move on in place. Null lanes (slot <= 0) give zeros."""
    out = torch.zeros_like(v)
    live = (slots > 0).nonzero()[:, 0]
    if not len(live):
        return out
    slot, position = slots[live].long(), positions[live].long()
    t, heads, dtype = position % CHUNK, v.shape[1], v.dtype
    caches.keys[slot, :, t], caches.values[slot, :, t] = k[live], v[live]
    caches.gates[slot, :, t], caches.betas[slot, :, t] = g[live], beta[live]
    lane, r = torch.arange(len(live)), torch.arange(CHUNK)
    now, past = (r == t[:, None])[:, None, :], (r < t[:, None])[:, None, :]
    block = (t // BLOCK * BLOCK)[:, None, None]

    def rows(cache: torch.Tensor, upto: torch.Tensor) -> torch.Tensor:
        return torch.where(upto.reshape(upto.shape + (1,) * (cache.dim() - 3)), cache[slot], 0)

    before = torch.where((t > 0)[:, None], caches.decay[slot, :, (t - 1).clamp(min=0)], 0.0)
    caches.decay[slot, :, t] = G_t = before + g[live] * LOG2E
    G = rows(caches.decay, past | now)
    key = spread(rows(caches.keys, past | now), heads)
    x = torch.stack([k[live], q[live]], 2).repeat_interleave(heads // k.shape[1], 1)
    z = dot(x, key.transpose(-1, -2))
    own = z[lane, :, 1, t] + 0.0
    b, e = beta[live][..., None], exp2(G_t)[..., None]
    z = torch.where(past[..., None, :], z * exp2(G_t[..., None] - G)[..., None, :], 0.0)
    a = torch.where(past, z[..., 0, :] * -b, 0.0)[..., None, :]
    high, low = (block_diagonal(part) for part in rows(caches.inverse, past).unbind(-2))
    c, f = fold(a, z[..., 1:, :], torch.zeros_like(own)[..., None, None], high, low)
    d_t = torch.where(now, 1.0, torch.where(past & (r >= block), c[..., 0, :], 0.0))
    d_high, d_low = split(d_t, dtype)
    inside = torch.arange(BLOCK) + block
    columns = inside.expand(-1, heads, -1)
    caches.inverse[slot, :, t] = torch.stack([part.gather(-1, columns) for part in (d_high, d_low)], -2)
    f = f[..., 0, :] + own[..., None] * (d_high.float() + d_low.float())
    c, f = torch.where(r < block, c[..., 0, :], 0.0), torch.where(past, f, 0.0)
    started = (position >= CHUNK)[:, None, None, None]
    snapshot = torch.where(started, caches.snapshot[slot], 0).transpose(-1, -2)
    acc = dot(x, snapshot) * e[..., None]
    base = (v[live].float() - acc[..., 0, :]) * b
    acc = torch.stack([base, acc[..., 1, :]], -2)
    acc = dot(torch.stack([c, f], -2).to(dtype), rows(caches.residuals, past), acc)
    r_t = (acc[..., 0, :] + 0.0).to(dtype)
    caches.residuals[slot, :, t] = r_t
    out[live] = ((acc[..., 1, :] + r_t.float() * own[..., None]) * scale).to(dtype)
    full = (t == CHUNK - 1).nonzero()[:, 0]
    if len(full):
        at = slot[full]
        u = dot(block_diagonal(caches.inverse[at][..., 0, :]), caches.residuals[at])
        s = torch.where(started[full], caches.state[at], 0.0)
        s = advance(s, u, caches.decay[at], G_t[full], key[full])
        caches.state[at], caches.snapshot[at] = s, s.to(dtype)
    return out
