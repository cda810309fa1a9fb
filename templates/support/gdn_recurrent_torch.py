# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, token after token in fp32 on the CPU target, as in `gdn_recurrent_triton`."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .gdn_tiles_torch import LOG2E, exp2
from .trees import pair_sum

PLACES, SPAN = 4, 16


def product(s: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """S x [...,V] of s [...,V,K], x [...,1,K]: each place's keys in order, then the tree over places. What is fused on
    sm90 is a product and a sum here."""
    terms = (s * x).unflatten(-1, (-1, PLACES, SPAN // PLACES)).transpose(-1, -2).flatten(-3, -2).unbind(-2)
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return pair_sum(total)[..., 0]


def token(
    s: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, e: torch.Tensor, b: torch.Tensor,
    scale: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """u = (v - (S k) e) b, then the states S + u k^T [B,HV,V,K] and their outputs S q * scale [B,HV,V]; q, k [B,H,K],
    v [B,HV,V], the rest [B,HV]."""
    group = v.shape[1] // k.shape[1]
    key, query = (x.float().repeat_interleave(group, 1)[:, :, None, :] for x in (k, q))
    u = (v.float() - product(s, key) * e[..., None]) * b[..., None]
    s = s + u[..., None] * key
    return s, (product(s, query) * scale[..., None]).to(v.dtype)


def recur(
    s: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One token of states s [B,HV,V,K]: q, k [B,H,K], v [B,HV,V], g, beta [B,HV] -> (state, outputs [B,HV,V])."""
    s = s * exp2(g * LOG2E)[..., None, None]
    return token(s, q, k, v, torch.ones_like(g), beta, torch.full_like(g, scale))


def advance_together(
    states: torch.Tensor, begins: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, scale: float,
) -> None:  # fmt: skip
    """Segments [begin, begin + rows) of the packed rows from their states [N,HV,V,K], which move on in place."""
    for t in range(int(rows.max()) if len(rows) else 0):
        live = (rows > t).nonzero()[:, 0]
        at = begins[live] + t
        states[live], out[at] = recur(states[live], q[at], k[at], v[at], g[at], beta[at], scale)


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    scale: float, launch: Mapping[str, int],
    state: torch.Tensor | None = None, slots: torch.Tensor | None = None, positions: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of whole sequences; with `state` [slots,HV,V,K] they go on from their slots and return there."""
    out = torch.empty_like(v)
    begins, rows = cu_seqlens[:-1].long(), cu_seqlens.diff().long()
    s = torch.zeros((len(rows), v.shape[1], v.shape[2], k.shape[2]), dtype=torch.float32)
    if state is not None and slots is not None and positions is not None:
        resumed = ((slots > 0) & (positions > 0)).nonzero()[:, 0]
        s[resumed] = state[slots[resumed].long()]
    advance_together(s, begins, rows, out, q, k, v, g, beta, scale)
    if state is not None and slots is not None:
        kept = ((slots > 0) & (rows > 0)).nonzero()[:, 0]
        state[slots[kept].long()] = s[kept]
    return out


def recurrent_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    state: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One token of each lane: outputs [B,HV,V], the state in place; null lanes give zeros."""
    ones = torch.arange(len(slots) + 1, dtype=torch.int32)
    out = recurrent(q, k, v, g, beta, ones, scale, launch, state, slots, positions)
    return torch.where((slots > 0)[:, None, None], out, 0)
