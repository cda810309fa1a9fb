# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, token after token in fp32 (Triton), the state in registers:

    S <- S * exp2(g log2 e);  u = (v - S k) beta;  S <- S + u k^T;  o = S q * scale

S is K / 4 tensors of four places by BLOCK_V value columns: a place has four keys of every sixteen, so that states move
in vectors of four. A sum over K is, in each place, a chain of fused multiply-adds over its keys in order, then the
balanced tree of adjacent places: each tl.sum adds two terms, so that no launch parameter moves a bit, and stopping
after any token is exact. A token's q and k are asked for one token ahead. q, k, v are read in the model dtype, o is
rounded to it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_prepare_triton import LOG2E

PLACES = tl.constexpr(4)
SPAN = tl.constexpr(16)  # keys that all places share, four each


@triton.jit
def _places():
    """Offset of the first key of each place, [2,2]."""
    b = tl.arange(0, 2)
    return 8 * b[:, None] + 4 * b[None, :]


@triton.jit
def _cells(value, stride):
    """Offsets of the places' first keys, for the columns `value` of a matrix, [2,2,BLOCK_V,4]."""
    return value[None, None, :, None] * stride + _places()[:, :, None, None] + tl.arange(0, 4)[None, None, None, :]


@triton.jit
def _by_place(x):
    """fp32 tensors [2,2,BLOCK_V], in the order of each place's keys, of x [2,2,BLOCK_V,4] for every SPAN keys."""
    parts = ()
    for i in tl.static_range(len(x)):
        pairs = tl.reshape(x[i].to(tl.float32), (2, 2, x[i].shape[2], 2, 2))
        even, odd = tl.split(pairs)
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        parts = parts + (first, second, third, fourth)  # noqa: RUF005
    return parts


@triton.jit
def _take(cells, wanted, K: tl.constexpr):
    """A state, or a row for every column of it, at the pointers `cells`; zeros where not wanted."""
    x = ()
    for i in tl.static_range(0, K, SPAN):
        x = x + (tl.load(cells + i, mask=wanted, other=0.0),)  # noqa: RUF005
    return x


@triton.jit
def _take_state(tile, value, wanted, K: tl.constexpr):
    """The [BLOCK_V, K] state at `tile` as K / 4 fp32 tensors [2,2,BLOCK_V]."""
    return _by_place(_take(tile + _cells(value, K), wanted, K))


@triton.jit
def _keep_state(tile, value, s, wanted, K: tl.constexpr):
    for i in tl.static_range(0, K // PLACES, 4):
        x = tl.join(tl.join(s[i], s[i + 2]), tl.join(s[i + 1], s[i + 3]))
        x = tl.reshape(x, (2, 2, value.shape[0], 4))
        tl.store(tile + _cells(value, K) + PLACES * i, x, mask=wanted)


@triton.jit
def _scaled_state(s, factor, K: tl.constexpr):
    scaled = ()
    for i in tl.static_range(K // PLACES):
        scaled = scaled + (s[i] * factor,)  # noqa: RUF005
    return scaled


@triton.jit
def _product(s, x, K: tl.constexpr):
    """S x [BLOCK_V]."""
    total = s[0] * x[0]
    for i in tl.static_range(1, K // PLACES):
        total = tl.fma(s[i], x[i], total)
    return tl.sum(tl.sum(total, 1), 0)


@triton.jit
def _token(s, q, k, v, e, b, scale, K: tl.constexpr):
    """u = (v - (S k) e) b, then the state S + u k^T and its output S q * scale [BLOCK_V]."""
    u = ((v - _product(s, k, K) * e) * b)[None, None, :]
    moved = ()
    for i in tl.static_range(K // PLACES):
        x = s[i]
        moved = moved + (tl.fma(tl.broadcast_to(u, x.shape), k[i], x),)  # noqa: RUF005
    return moved, _product(moved, q, K) * scale


@triton.jit
def _recur(
    s, q, k, v, g, beta, out, begin, rows, head, value, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """`rows` tokens from row `begin` on state s; returns the state after them."""
    shared = (begin * H + head // (HV // H)) * K + _cells(value, 0)
    k_next = _take(k + shared, True, K)
    q_next = _take(q + shared, True, K)
    for t in range(rows):
        k_t = _by_place(k_next)
        q_t = _by_place(q_next)
        ahead = shared + tl.minimum(t + 1, rows - 1) * (H * K)
        k_next = _take(k + ahead, True, K)
        q_next = _take(q + ahead, True, K)
        at = (begin + t) * HV + head
        v_t = tl.load(v + at * V + value).to(tl.float32)
        s = _scaled_state(s, tl.exp2(tl.load(g + at) * LOG2E), K)
        s, o = _token(s, q_t, k_t, v_t, 1.0, tl.load(beta + at), scale, K)
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
