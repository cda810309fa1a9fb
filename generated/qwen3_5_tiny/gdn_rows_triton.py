# SPDX-License-Identifier: Apache-2.0
"""Rows of open chunks in and out of the caches (Triton): byte movement only.

A sequence that resumes inside a chunk is computed again from the chunk's first row: `gather` puts the cached rows
before the new ones, `stow` leaves the rows of the chunk that stays open.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .gdn_caches import Caches, CprCaches, strides

CHUNK = tl.constexpr(64)
BLOCK = tl.constexpr(16)


@triton.jit(do_not_specialize=["sequences"])
def _gather_kernel(
    q, k, v, g, beta, q_out, k_out, v_out, g_out, beta_out, index, cu_seqlens, packed, slots, open_rows,
    keys, values, gates, betas, sequences,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr, SCALARS: tl.constexpr,
    PAD_K: tl.constexpr, PAD_V: tl.constexpr, PAD_H: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, LOOKUP)
    ends = tl.load(packed + 1 + i, mask=i < sequences, other=2147483647)
    sequence = tl.sum((ends <= row).to(tl.int32), 0)
    if sequence < sequences:
        j = row - tl.load(packed + sequence)
        opened = tl.load(open_rows + sequence)
        slot = tl.load(slots + sequence).to(tl.int64)
        token = (tl.load(cu_seqlens + sequence) + j - opened).to(tl.int64)
        new = j >= opened
        to = row.to(tl.int64)
        c = tl.arange(0, PAD_K)
        m = c < H * K
        zero = tl.load(q + token * (H * K) + c, mask=m & new, other=0.0)
        tl.store(q_out + to * (H * K) + c, zero, mask=m)
        cached = tl.load(keys + slot * KEYS + ((c // K) * CHUNK + j) * K + c % K, mask=m & (new == 0), other=0.0)
        given = tl.load(k + token * (H * K) + c, mask=m & new, other=0.0)
        tl.store(k_out + to * (H * K) + c, tl.where(new, given, cached), mask=m)
        c = tl.arange(0, PAD_V)
        m = c < HV * V
        cached = tl.load(values + slot * ROWS + ((c // V) * CHUNK + j) * V + c % V, mask=m & (new == 0), other=0.0)
        given = tl.load(v + token * (HV * V) + c, mask=m & new, other=0.0)
        tl.store(v_out + to * (HV * V) + c, tl.where(new, given, cached), mask=m)
        h = tl.arange(0, PAD_H)
        m = h < HV
        cached = slot * SCALARS + h * CHUNK + j
        kept = tl.load(gates + cached, mask=m & (new == 0), other=0.0)
        tl.store(g_out + to * HV + h, tl.where(new, tl.load(g + token * HV + h, mask=m & new, other=0.0), kept), mask=m)
        kept = tl.load(betas + cached, mask=m & (new == 0), other=0.0)
        given = tl.load(beta + token * HV + h, mask=m & new, other=0.0)
        tl.store(beta_out + to * HV + h, tl.where(new, given, kept), mask=m)
        if new:
            tl.store(index + token, row)


@triton.jit
def _stow_kernel(
    k, v, g, beta, scalars, inverse, cu_seqlens, slots, keys, values, gates, betas, decays, inverses,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, SOLVED: tl.constexpr,
    KEYS: tl.constexpr, ROWS: tl.constexpr, SCALARS: tl.constexpr, INVERSE: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots + sequence).to(tl.int64)
    end = tl.load(cu_seqlens + sequence + 1).to(tl.int64)
    begin = tl.load(cu_seqlens + sequence).to(tl.int64)
    rows = ((end - begin) % CHUNK).to(tl.int32)
    if (slot > 0) & (rows > 0):
        r = tl.arange(0, CHUNK)
        live = r < rows
        at = (end - rows + r) * HV + head
        place = slot * SCALARS + head * CHUNK + r
        tl.store(gates + place, tl.load(g + at, mask=live), mask=live)
        tl.store(betas + place, tl.load(beta + at, mask=live), mask=live)
        column = tl.arange(0, V)[None, :]
        row_v = tl.load(v + at[:, None] * V + column, mask=live[:, None])
        tl.store(values + slot * ROWS + (head * CHUNK + r)[:, None] * V + column, row_v, mask=live[:, None])
        if SOLVED:
            chunk = begin // CHUNK + sequence + (end - begin) // CHUNK
            G = tl.load(scalars + (chunk * HV + head) * (3 * CHUNK) + r, mask=live)
            tl.store(decays + place, G, mask=live)
            part = tl.arange(0, 2 * BLOCK)[None, :]
            row_d = tl.load(inverse + at[:, None] * (2 * BLOCK) + part, mask=live[:, None])
            inverses += slot * INVERSE
            tl.store(inverses + (head * CHUNK + r)[:, None] * (2 * BLOCK) + part, row_d, mask=live[:, None])
        if head % (HV // H) == 0:
            shared = head // (HV // H)
            key = tl.arange(0, K)[None, :]
            row_k = tl.load(k + ((end - rows + r) * H + shared)[:, None] * K + key, mask=live[:, None])
            tl.store(keys + slot * KEYS + (shared * CHUNK + r)[:, None] * K + key, row_k, mask=live[:, None])


def gather(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    cu_seqlens: torch.Tensor, caches: Caches | CprCaches, slots: torch.Tensor, open_rows: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """q, k, v, g, beta with every sequence's `open_rows` cached rows before its new ones; their cu_seqlens; the place
    of each new row. Room for 63 cached rows a sequence is always taken, so that no size is read from the device."""
    (tokens, heads, key_width), (v_heads, width), sequences = q.shape, v.shape[1:], slots.shape[0]
    packed = cu_seqlens.clone()
    packed[1:] += open_rows.cumsum(0, dtype=torch.int32)
    room, at = tokens + 63 * sequences, strides(caches)
    outs = [x.new_empty((room, *x.shape[1:])) for x in (q, k, v, g, beta)]
    index = torch.empty(tokens, dtype=torch.int32, device=q.device)
    _gather_kernel[(room,)](
        q, k, v, g, beta, *outs, index, cu_seqlens, packed, slots, open_rows,
        caches.keys, caches.values, caches.gates, caches.betas, sequences,
        H=heads, HV=v_heads, K=key_width, V=width, KEYS=at["KEYS"], ROWS=at["ROWS"], SCALARS=at["SCALARS"],
        PAD_K=triton.next_power_of_2(heads * key_width),
        PAD_V=triton.next_power_of_2(v_heads * width), PAD_H=triton.next_power_of_2(v_heads),
        LOOKUP=triton.next_power_of_2(sequences), num_warps=4, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return *outs, packed, index


def stow(
    k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, solved: tuple[torch.Tensor, ...] | None,
    cu_seqlens: torch.Tensor, caches: Caches | CprCaches, slots: torch.Tensor,
) -> None:  # fmt: skip
    """The open chunk's rows of every sequence into its slot; `solved` begins `prepared`, None leaves them out."""
    (heads, key_width), (v_heads, width) = k.shape[1:], v.shape[1:]
    scalars, inverse = (g, k) if solved is None else solved
    kept = (caches.decay, caches.inverse) if isinstance(caches, Caches) else (g, k)
    at = strides(caches)
    _stow_kernel[(slots.shape[0], v_heads)](
        k, v, g, beta, scalars, inverse, cu_seqlens, slots,
        caches.keys, caches.values, caches.gates, caches.betas, *kept,
        H=heads, HV=v_heads, K=key_width, V=width, SOLVED=solved is not None,
        KEYS=at["KEYS"], ROWS=at["ROWS"], SCALARS=at["SCALARS"], INVERSE=at.get("INVERSE", 0),
        num_warps=4, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
