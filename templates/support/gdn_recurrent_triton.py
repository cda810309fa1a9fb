# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, token after token in fp32 (Triton), the state in registers:

    S <- S * exp2(g log2 e);  u = (v - S k) beta;  S <- S + u k^T;  o = S q * scale

S is K / 8 tensors of eight keys by BLOCK_V value columns, a column held by eight threads. A sum over K is, in each of
the eight places, a chain of fused multiply-adds over every eighth key, then the balanced tree of adjacent pairs of
places: each tl.sum adds two terms, so that no launch parameter moves a bit, and stopping after any token is exact.
q, k, v are read in the model dtype, o is rounded to it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_prepare_triton import LOG2E

PLACES = tl.constexpr(8)


@triton.jit
def _eight():
    """0..7 as [2,2,2]."""
    b = tl.arange(0, 2)
    return 4 * b[:, None, None] + 2 * b[None, :, None] + b[None, None, :]


@triton.jit
def _take_state(tile, value, wanted, K: tl.constexpr):
    """The [BLOCK_V, K] state at `tile` as K / 8 fp32 tensors [2,2,2,BLOCK_V]; zeros where not wanted."""
    at = tile + value[None, None, None, :] * K + _eight()[:, :, :, None]
    s = ()
    for i in tl.static_range(K // PLACES):
        s = s + (tl.load(at + i * PLACES, mask=wanted, other=0.0).to(tl.float32),)  # noqa: RUF005
    return s


@triton.jit
def _keep_state(tile, value, s, wanted, K: tl.constexpr):
    at = tile + value[None, None, None, :] * K + _eight()[:, :, :, None]
    for i in tl.static_range(K // PLACES):
        tl.store(at + i * PLACES, s[i], mask=wanted)


@triton.jit
def _take_row(row, K: tl.constexpr):
    """The K elements at `row`, a block of pointers as `_eight`, as K / 8 fp32 tensors [2,2,2,1]."""
    x = ()
    for i in tl.static_range(K // PLACES):
        x = x + (tl.load(row + i * PLACES).to(tl.float32)[:, :, :, None],)  # noqa: RUF005
    return x


@triton.jit
def _product(s, x, K: tl.constexpr):
    """S x [BLOCK_V]."""
    total = s[0] * x[0]
    for i in tl.static_range(1, K // PLACES):
        total = tl.fma(s[i], tl.broadcast_to(x[i], s[i].shape), total)
    return tl.sum(tl.sum(tl.sum(total, 2), 1), 0)


@triton.jit
def _recur(
    s, q, k, v, g, beta, out, begin, rows, head, value, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """`rows` tokens from row `begin` on state s; returns the state after them."""
    eight = _eight()
    for t in range(rows):
        at = (begin + t) * HV + head
        shared = ((begin + t) * H + head // (HV // H)) * K + eight
        k_t = _take_row(k + shared, K)
        q_t = _take_row(q + shared, K)
        v_t = tl.load(v + at * V + value).to(tl.float32)
        e = tl.exp2(tl.load(g + at) * LOG2E)
        decayed = ()
        for i in tl.static_range(K // PLACES):
            decayed = decayed + (s[i] * e,)  # noqa: RUF005
        u = ((v_t - _product(decayed, k_t, K)) * tl.load(beta + at))[None, None, None, :]
        s = ()
        for i in tl.static_range(K // PLACES):
            x = decayed[i]
            s = s + (tl.fma(tl.broadcast_to(u, x.shape), tl.broadcast_to(k_t[i], x.shape), x),)  # noqa: RUF005
        o = _product(s, q_t, K) * scale
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
    slot = tl.load(slots + sequence) if CACHED else 0
    tile = state + (tl.maximum(slot, 0).to(tl.int64) * HV + head) * (V * K) if CACHED else v
    resumed = (slot > 0) & (tl.load(positions + sequence) > 0) if CACHED else False
    s = _take_state(tile, value, resumed, K)
    s = _recur(s, q, k, v, g, beta, out, begin, rows, head, value, scale, H, HV, K, V)
    if CACHED:
        _keep_state(tile, value, s, (slot > 0) & (rows > 0), K)


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
        tile = state + (slot.to(tl.int64) * HV + head) * (V * K)
        s = _take_state(tile, value, tl.load(positions + lane) > 0, K)
        s = _recur(s, q, k, v, g, beta, out, lane.to(tl.int64), 1, head, value, scale, H, HV, K, V)
        _keep_state(tile, value, s, True, K)
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
