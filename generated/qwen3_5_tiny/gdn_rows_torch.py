# SPDX-License-Identifier: Apache-2.0
"""Rows of open chunks in and out of the caches on the CPU target, as in `gdn_rows_triton`: byte movement only."""

from __future__ import annotations

import torch

from .gdn_caches import Caches, CprCaches
from .gdn_tiles_torch import CHUNK


def gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    cu_seqlens: torch.Tensor, caches: Caches | CprCaches, slots: torch.Tensor, open_rows: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """q, k, v, g, beta with every sequence's `open_rows` cached rows before its new ones; their cu_seqlens; the place
    of each new row."""
    parts: list[tuple[torch.Tensor, ...]] = []
    index, packed = [], [0]
    for i, (slot, opened) in enumerate(zip(slots.tolist(), open_rows.tolist(), strict=True)):
        here = slice(int(cu_seqlens[i]), int(cu_seqlens[i + 1]))
        if opened:
            kept = (caches.keys, caches.values, caches.gates, caches.betas)
            old = tuple(cache[slot, :, :opened].transpose(0, 1) for cache in kept)
            parts.append((torch.zeros_like(old[0]), *old))
        parts.append((q[here], k[here], v[here], g[here], beta[here]))
        index.append(torch.arange(packed[-1] + opened, packed[-1] + opened + here.stop - here.start))
        packed.append(packed[-1] + opened + here.stop - here.start)
    joined = (torch.cat(part).contiguous() for part in zip(*parts, strict=True))
    return *joined, torch.tensor(packed, dtype=torch.int32), torch.cat(index).int()


def stow(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, solved: tuple[torch.Tensor, ...] | None,
    cu_seqlens: torch.Tensor, caches: Caches | CprCaches, slots: torch.Tensor,
) -> None:  # fmt: skip
    """The open chunk's rows of every sequence into its slot; `solved` begins `prepared`, None leaves them out."""
    pairs = [(caches.keys, k), (caches.values, v), (caches.gates, g), (caches.betas, beta)]
    if solved is not None and isinstance(caches, Caches):
        pairs += list(zip((caches.decay, caches.inverse), solved, strict=True))
    for i, slot in enumerate(slots.tolist()):
        end = int(cu_seqlens[i + 1])
        rows = (end - int(cu_seqlens[i])) % CHUNK
        if slot > 0 and rows:
            for cache, x in pairs:
                cache[slot, :, :rows] = x[end - rows : end].transpose(0, 1)
