# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunkwise-parallel recurrent on the CPU target, as in `gdn_cpr_triton`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gdn_caches import CprCaches, States
from .gdn_prepare_torch import prepare
from .gdn_recurrent_torch import advance_together, recur
from .gdn_scan_torch import scan
from .gdn_tiles_torch import CHUNK, chunks


def chunk_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    starts: torch.Tensor, scale: float, launch: Mapping[str, int],
    running: torch.Tensor | None = None, slots: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of every chunk from its first state in `starts`; open chunks leave theirs in `running`."""
    out = torch.empty_like(v)
    found = list(chunks(cu_seqlens))
    sequence, begins, rows = (torch.tensor(x) for x in zip(*found, strict=True))
    first = cu_seqlens[:-1].long()[sequence]
    states = starts[first // CHUNK + sequence + (begins - first) // CHUNK].float()
    advance_together(states, begins, rows, out, q, k, v, g, beta, scale)
    if running is not None and slots is not None:
        slot = slots[sequence].long()
        kept = ((rows < CHUNK) & (slot > 0)).nonzero()[:, 0]
        running[slot[kept]] = states[kept]
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
    for cache, x in ((caches.keys, k), (caches.values, v), (caches.gates, g), (caches.betas, beta)):
        cache[slot, :, t] = x[live]
    chain = torch.where((position > 0)[:, None, None, None], caches.state[slot], 0.0)
    s = torch.where((t == 0)[:, None, None, None], chain.to(v.dtype).float(), caches.running[slot])
    caches.running[slot], out[live] = recur(s, *(x[live] for x in (q, k, v, g, beta)), scale)
    full = (t == CHUNK - 1).nonzero()[:, 0]
    if len(full):
        at = slot[full]
        rows = [cache[at].transpose(1, 2).flatten(0, 1) for cache in caches[2:]]
        key, value, gate, write = rows
        cu_seqlens = torch.arange(0, CHUNK * len(full) + 1, CHUNK, dtype=torch.int32)
        prepared = prepare(key, key, gate, write, cu_seqlens)
        scan(
            key, key, value, prepared, cu_seqlens, scale, launch, caches=States(caches.state),
            slots=at.int(), origin=position[full] // CHUNK, keep=True, out=False,
        )  # fmt: skip
    return out
