# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form on the CPU target: R, the outputs and the state, as in `gdn_scan_triton`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gdn_caches import Caches, CprCaches, States
from .gdn_tiles_torch import BLOCK, CHUNK, block_diagonal, chunks, dot, exp2, spread, tile


def advance(s: torch.Tensor, u: torch.Tensor, G: torch.Tensor, last: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """S' of the state s [..., V, K] after rows with U [..., 64, V], G [..., 64] and keys [..., 64, K]; last [...]."""
    u = (u * exp2(last[..., None] - G)[..., None]).to(key.dtype)
    return dot(u.transpose(-1, -2), key, s * exp2(last)[..., None, None])


def scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: tuple[torch.Tensor, ...],
    cu_seqlens: torch.Tensor, scale: float, launch: Mapping[str, int], *,
    caches: Caches | CprCaches | States | None = None,
    slots: torch.Tensor | None = None, origin: torch.Tensor | None = None,
    keep: bool = False, flush: bool = False, trace: bool = False, out: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Outputs [T,HV,V], and with `trace` the state before every chunk [T//64+B,HV,V,K] and U [T,HV,V]; else v."""
    decay, inverse, coupling, readout, own, beta = prepared
    tokens, heads, width = v.shape
    o = torch.empty_like(v)
    starts = v.new_empty((tokens // CHUNK + len(cu_seqlens) - 1, heads, width, k.shape[2])) if trace else v
    solved = torch.empty_like(v) if trace else v
    s = v.new_empty(0)
    for sequence, start, rows in chunks(cu_seqlens):
        here = slice(start, start + rows)
        begin, end = int(cu_seqlens[sequence]), int(cu_seqlens[sequence + 1])
        slot = 0 if slots is None else max(int(slots[sequence]), 0)
        if start == begin:
            s = torch.zeros((heads, width, k.shape[2]), dtype=torch.float32)
            if caches is not None and origin is not None and slot and origin[sequence] > 0:
                s = caches.state[slot].clone()
        snapshot = s.to(v.dtype).transpose(-1, -2)
        if trace:
            starts[begin // CHUNK + sequence + (start - begin) // CHUNK] = snapshot.transpose(-1, -2)
        key, query = (spread(tile(x, start, rows), heads) for x in (k, q))
        G, b, value = tile(decay, start, rows), tile(beta, start, rows), tile(v, start, rows).float()
        e = exp2(G)[..., None]
        base = (value - dot(key, snapshot) * e) * b[..., None]
        c = tile(coupling, start, rows)
        residual = torch.zeros_like(value, dtype=v.dtype)
        for block in (slice(b, b + BLOCK) for b in range(0, CHUNK, BLOCK)):
            residual[..., block, :] = (dot(c[..., block, :], residual, base[..., block, :]) + 0.0).to(v.dtype)
        u = dot(block_diagonal(tile(inverse, start, rows)[..., 0, :]), residual)
        if out:
            acc = dot(tile(readout, start, rows), residual, dot(query, snapshot) * e)
            acc = acc + residual.float() * tile(own, start, rows)[..., None]
            o[here] = (acc * scale).to(v.dtype).transpose(0, 1)[:rows]
        if trace:
            solved[here] = u.to(v.dtype).transpose(0, 1)[:rows]
        if rows == CHUNK or flush:
            s = advance(s, u, G, G[:, rows - 1], key)
        elif keep and slot and isinstance(caches, Caches):
            caches.residuals[slot, :, :rows] = residual[:, :rows]
        if keep and slot and start + rows == end and caches is not None:
            caches.state[slot] = s
            if isinstance(caches, Caches):
                caches.snapshot[slot] = s.to(v.dtype)
    return o, starts, solved
