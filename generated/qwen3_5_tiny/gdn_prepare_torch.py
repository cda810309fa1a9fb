# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form on the CPU target: G, D, C, Q and P_tt as `gdn_prepare_triton` defines them."""

from __future__ import annotations

import torch

from .gdn_tiles_torch import BLOCK, CHUNK, LOG2E, block_diagonal, chunks, dot, exp2, split, spread, tile


def solve(a: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """D of the strictly lower A [..., 64, 64] (its sign turned): row t of a block is e_t + A_t D, as two parts."""
    row, column = torch.arange(CHUNK)[:, None], torch.arange(BLOCK)[None, :]
    high = (row % BLOCK == column).to(dtype).expand(*a.shape[:-2], CHUNK, BLOCK).clone()
    low = torch.zeros_like(high)
    blocks = [slice(b, b + BLOCK) for b in range(0, CHUNK, BLOCK)]
    a_high, a_low = split(a, dtype)
    for t in range(1, BLOCK):
        for block in blocks:
            now = slice(block.start + t, block.start + t + 1)
            x = dot(a_high[..., now, block], high[..., block, :])
            x = dot(a_high[..., now, block], low[..., block, :], x)
            x = dot(a_low[..., now, block], high[..., block, :], x)
            high[..., now, :t], low[..., now, :t] = (part[..., :t] for part in split(x, dtype))
    return high, low


def fold(
    a: torch.Tensor, p: torch.Tensor, own: torch.Tensor, high: torch.Tensor, low: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """fp32 C (before its mask) and Q of rows of A and P [..., M, 64] against D [..., 64, 64] in two parts; `own` is
    added to Q."""
    dtype = high.dtype
    a_high, a_low = split(a, dtype)
    c = dot(a_low, high, dot(a_high, low, dot(a_high, high)))
    p = p.to(dtype)
    return c, dot(p, low, dot(p, high)) + own


def prepare(
    q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """decay, inverse, coupling, readout, own of every row, and beta."""
    tokens, heads = g.shape
    decay, own = torch.empty_like(g), torch.empty_like(g)
    inverse = q.new_empty((tokens, heads, 2, BLOCK))
    coupling = q.new_empty((tokens, heads, CHUNK))
    readout = torch.empty_like(coupling)
    row, column = torch.arange(CHUNK)[:, None], torch.arange(CHUNK)[None, :]
    earlier = row > column
    for _, start, rows in chunks(cu_seqlens):
        here = slice(start, start + rows)
        total = g.new_zeros(heads)
        for t in range(start, start + rows):
            total = total + g[t] * LOG2E
            decay[t] = total
        G, b = tile(decay, start, rows), tile(beta, start, rows)
        key, query = (spread(tile(x, start, rows), heads) for x in (k, q))
        # A row that is not there has G = 0: exp2(0 - G_s) may be infinite.
        E = torch.where(earlier & (row < rows), exp2(G[..., :, None] - G[..., None, :]), 0.0)
        z = dot(torch.cat([key, query], -2), key.transpose(-1, -2))
        z, zq = z[..., :CHUNK, :], z[..., CHUNK:, :]
        a = torch.where(earlier, z * E * -b[..., :, None], 0.0)
        high, low = solve(a, q.dtype)
        p_own = zq.diagonal(dim1=-2, dim2=-1) + 0.0
        d = block_diagonal(high.float() + low.float())
        c, f = fold(a, torch.where(earlier, zq * E, 0.0), p_own[..., :, None] * d, *map(block_diagonal, (high, low)))
        c = torch.where(row // BLOCK > column // BLOCK, c, 0.0)
        f = torch.where(earlier, f, 0.0)
        inverse[here] = torch.stack([high, low], -2).transpose(0, 1)[:rows]
        coupling[here] = c.to(q.dtype).transpose(0, 1)[:rows]
        readout[here] = f.to(q.dtype).transpose(0, 1)[:rows]
        own[here] = p_own.T[:rows]
    return decay, inverse, coupling, readout, own, beta
