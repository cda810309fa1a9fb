# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, token after token in fp32 (Triton), the state in registers:

    S <- S * exp2(g log2 e);  u = (v - S k) beta;  S <- S + u k^T;  o = S q * scale

S is held as [V, K]; sums over K are the balanced tree of adjacent pairs, so that no launch parameter moves a bit, and
stopping after any token is exact. q, k, v are read in the model dtype, o is rounded to it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_prepare_triton import LOG2E
from .trees_triton import pair_sum


@triton.jit
def _recur(
    s, q, k, v, g, beta, out, begin, rows, head, value, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """`rows` tokens from row `begin` on state s [BLOCK_V, K]; returns the state after them."""
    column = tl.arange(0, K)
    for t in range(rows):
        at = (begin + t) * HV + head
        shared = ((begin + t) * H + head // (HV // H)) * K
        k_t = tl.load(k + shared + column).to(tl.float32)[None, :]
        q_t = tl.load(q + shared + column).to(tl.float32)[None, :]
        v_t = tl.load(v + at * V + value).to(tl.float32)
        s = s * tl.exp2(tl.load(g + at) * LOG2E)
        u = (v_t - tl.reshape(pair_sum(s * k_t), (BLOCK_V,))) * tl.load(beta + at)
        s = s + u[:, None] * k_t
        o = tl.reshape(pair_sum(s * q_t), (BLOCK_V,)) * scale
        tl.store(out + at * V + value, o.to(out.dtype.element_ty))
    return s


@triton.jit
def _recurrent_kernel(
    q, k, v, g, beta, out, cu_seqlens, state, slots, positions, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, CACHED: tl.constexpr,
):  # fmt: skip
    """Whole sequences, from zero or, CACHED, from and to their slots; null lanes start from zero and keep nothing."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    sequence = tl.program_id(2)
    begin = tl.load(cu_seqlens + sequence).to(tl.int64)
    rows = (tl.load(cu_seqlens + sequence + 1) - begin).to(tl.int32)
    s = tl.zeros((BLOCK_V, K), tl.float32)
    if CACHED:
        slot = tl.load(slots + sequence)
        tile = (tl.maximum(slot, 0).to(tl.int64) * HV + head) * (V * K) + value[:, None] * K + tl.arange(0, K)[None, :]
        s = tl.load(state + tile, mask=(slot > 0) & (tl.load(positions + sequence) > 0), other=0.0)
    s = _recur(s, q, k, v, g, beta, out, begin, rows, head, value, scale, H, HV, K, V, BLOCK_V)
    if CACHED:
        tl.store(state + tile, s, mask=(slot > 0) & (rows > 0))


@triton.jit
def _recurrent_step_kernel(
    q, k, v, g, beta, out, slots, positions, state, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One token of each lane, in place; null lanes give zeros."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    lane = tl.program_id(2)
    slot = tl.load(slots + lane)
    if slot > 0:
        tile = (slot.to(tl.int64) * HV + head) * (V * K) + value[:, None] * K + tl.arange(0, K)[None, :]
        s = tl.load(state + tile, mask=tl.load(positions + lane) > 0, other=0.0)
        s = _recur(s, q, k, v, g, beta, out, lane.to(tl.int64), 1, head, value, scale, H, HV, K, V, BLOCK_V)
        tl.store(state + tile, s)
    else:
        at = (lane.to(tl.int64) * HV + head) * V + value
        tl.store(out + at, tl.zeros((BLOCK_V,), out.dtype.element_ty))


def recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    scale: float, launch: Mapping[str, int],
    state: torch.Tensor | None = None, slots: torch.Tensor | None = None, positions: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of whole sequences; with `state` [slots,HV,V,K] they go on from their slots and return there."""
    (heads, key_width), (v_heads, width) = q.shape[1:], v.shape[1:]
    out = torch.empty_like(v)
    block_v = min(launch["recurrent_block_v"], width)
    stub = cu_seqlens
    _recurrent_kernel[(width // block_v, v_heads, cu_seqlens.shape[0] - 1)](
        q, k, v, g, beta, out, cu_seqlens, *((v, stub, stub) if state is None else (state, slots, positions)), scale,
        H=heads, HV=v_heads, K=key_width, V=width, BLOCK_V=block_v, CACHED=state is not None,
        num_warps=launch["recurrent_warps"], num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def recurrent_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    state: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One token of each lane: outputs [B,HV,V], the state in place."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out = torch.empty_like(v)
    block_v = min(launch["recurrent_block_v"], width)
    _recurrent_step_kernel[(width // block_v, v_heads, lanes)](
        q, k, v, g, beta, out, slots, positions, state, scale,
        H=heads, HV=v_heads, K=key_width, V=width, BLOCK_V=block_v,
        num_warps=launch["recurrent_warps"], num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out
