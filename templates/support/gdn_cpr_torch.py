# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunkwise-parallel recurrent on the CPU target, as in `gdn_cpr_triton`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gdn_caches import CprCaches, States
from .gdn_prepare_torch import prepare
from .gdn_recurrent_torch import token
from .gdn_scan_torch import scan
from .gdn_tiles_torch import CHUNK, LOG2E, chunks, exp2

LIFT = 32.0


def recur(
    z: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, G: torch.Tensor, former: torch.Tensor,
    beta: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One token of Z [B,HV,V,K]; G, G of the row before and beta [B,HV] -> (Z, outputs [B,HV,V])."""
    base = (G * (1.0 / LIFT)).trunc() * LIFT
    lift = exp2(base - (former * (1.0 / LIFT)).trunc() * LIFT)
    e = exp2(G - base)
    return token(z * lift[..., None, None], q, k, v, e, beta * exp2(base - G), e * scale)


def chunk_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: tuple[torch.Tensor, ...], cu_seqlens: torch.Tensor,
    starts: torch.Tensor, scale: float, launch: Mapping[str, int],
    caches: CprCaches | None = None, slots: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of every chunk from its first state in `starts`; open chunks leave their last Z and their G in
    the caches."""
    out, G, beta = torch.empty_like(v), prepared[0], prepared[-1]
    found = list(chunks(cu_seqlens))
    sequence, begins, rows = (torch.tensor(x) for x in zip(*found, strict=True))
    first = cu_seqlens[:-1].long()[sequence]
    z = starts[first // CHUNK + sequence + (begins - first) // CHUNK].float()
    for t in range(int(rows.max())):
        live = (rows > t).nonzero()[:, 0]
        at = begins[live] + t
        former = G[at - 1] if t else torch.zeros_like(G[at])
        z[live], out[at] = recur(z[live], q[at], k[at], v[at], G[at], former, beta[at], scale)
    if caches is not None and slots is not None:
        slot = slots[sequence].long()
        for i in ((rows < CHUNK) & (slot > 0)).nonzero()[:, 0]:
            caches.running[slot[i]] = z[i]
            caches.decay[slot[i], :, : rows[i]] = G[begins[i] : begins[i] + rows[i]].transpose(0, 1)
    return out


def cpr_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: CprCaches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One token of each lane: outputs [B,HV,V]; a filled chunk moves the chain on. Null lanes give zeros."""
    out = torch.zeros_like(v)
    live = (slots > 0).nonzero()[:, 0]
    slot, position = slots[live].long(), positions[live].long()
    t = position % CHUNK
    former = torch.where((t == 0)[:, None], 0.0, caches.decay[slot, :, t - 1])
    G = former + g[live] * LOG2E
    rows = ((caches.keys, k[live]), (caches.values, v[live]), (caches.gates, g[live]), (caches.betas, beta[live]))
    for cache, x in (*rows, (caches.decay, G)):
        cache[slot, :, t] = x
    chain = torch.where((position > 0)[:, None, None, None], caches.state[slot], 0.0)
    z = torch.where((t == 0)[:, None, None, None], chain.to(v.dtype).float(), caches.running[slot])
    caches.running[slot], out[live] = recur(z, *(x[live] for x in (q, k, v)), G, former, beta[live], scale)
    full = (t == CHUNK - 1).nonzero()[:, 0]
    if len(full):
        at = slot[full]
        key, value, gate, write = (cache[at].transpose(1, 2).flatten(0, 1) for cache, _ in rows)
        cu_seqlens = torch.arange(0, CHUNK * len(full) + 1, CHUNK, dtype=torch.int32)
        prepared = prepare(key, key, gate, write, cu_seqlens)
        scan(
            key, key, value, prepared, cu_seqlens, scale, launch, caches=States(caches.state),
            slots=at.int(), origin=position[full] // CHUNK, keep=True, out=False,
        )  # fmt: skip
    return out
