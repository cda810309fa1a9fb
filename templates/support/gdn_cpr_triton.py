# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunkwise-parallel recurrent (Triton).

The fp32 chain of `gdn_scan_triton` gives every chunk its first state, rounded; inside a chunk the recurrence of
`gdn_recurrent_triton` gives the outputs, all chunks in parallel. What the recurrence reaches at the end of a chunk is
dropped: the next one starts from the chain.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_caches import CprCaches
from .gdn_prepare_triton import BLOCK, CHUNK, LOG2E, _locate, _split
from .gdn_recurrent_triton import PLACES, _keep_state, _recur, _take_state
from .gdn_scan_triton import _advance


@triton.jit(do_not_specialize=["sequences"])
def _chunk_recurrent_kernel(
    q, k, v, g, beta, out, cu_seqlens, sequences, starts, running, slots, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Outputs of one chunk from `starts`; KEEP: an open chunk's last state goes to `running`."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    place = tl.program_id(2)
    begin, rows = _locate(cu_seqlens, sequences, place, LOOKUP)
    if rows > 0:
        s = _take_state(starts + (place.to(tl.int64) * HV + head) * (V * K), value, True, K)
        s = _recur(s, q, k, v, g, beta, out, begin, rows, head, value, scale, H, HV, K, V)
        if KEEP:
            i = tl.arange(0, LOOKUP)
            ends = tl.load(cu_seqlens + 1 + i, mask=i < sequences, other=2147483647)
            slot = tl.load(slots + tl.sum((ends <= begin).to(tl.int32), 0))
            kept = running + (tl.maximum(slot, 0).to(tl.int64) * HV + head) * (V * K)
            _keep_state(kept, value, s, (slot > 0) & (rows < CHUNK), K)


@triton.jit
def _snapshot(tile, value, wanted, K: tl.constexpr):
    """The state at `tile`, rounded once to bf16."""
    s = _take_state(tile, value, wanted, K)
    rounded = ()
    for i in tl.static_range(K // PLACES):
        rounded = rounded + (s[i].to(tl.bfloat16).to(tl.float32),)  # noqa: RUF005
    return rounded


@triton.jit
def _cpr_step_kernel(
    q, k, v, g, beta, out, slots, positions, state, running, keys, values, gates, betas, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One recurrent step of each lane and its row appended; the first row of a chunk starts from the rounded chain."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    lane = tl.program_id(2)
    slot = tl.load(slots + lane)
    token = lane.to(tl.int64) * HV + head
    if slot > 0:
        position = tl.load(positions + lane)
        t = position % CHUNK
        unit = slot.to(tl.int64) * HV + head
        if t == 0:
            s = _snapshot(state + unit * (V * K), value, position > 0, K)
        else:
            s = _take_state(running + unit * (V * K), value, True, K)
        s = _recur(s, q, k, v, g, beta, out, lane.to(tl.int64), 1, head, value, scale, H, HV, K, V)
        _keep_state(running + unit * (V * K), value, s, True, K)
        tl.store(values + (unit * CHUNK + t) * V + value, tl.load(v + token * V + value))
        if tl.program_id(0) == 0:
            tl.store(gates + unit * CHUNK + t, tl.load(g + token))
            tl.store(betas + unit * CHUNK + t, tl.load(beta + token))
            if head % (HV // H) == 0:
                column = tl.arange(0, K)
                row = (slot.to(tl.int64) * H + head // (HV // H)) * CHUNK + t
                given = (lane.to(tl.int64) * H + head // (HV // H)) * K
                tl.store(keys + row * K + column, tl.load(k + given + column))
    else:
        tl.store(out + token * V + value, tl.zeros((BLOCK_V,), out.dtype.element_ty))


@triton.jit(do_not_specialize=["lanes"])
def _chain_kernel(
    slots, positions, lanes, state, keys, values, gates, betas,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """The chain over every chunk that this step filled, with the arithmetic of the chunk form. The programs share
    those out: most steps have few or none."""
    i = tl.arange(0, LOOKUP)
    slot_i = tl.load(slots + i, mask=i < lanes, other=0)
    full = ((slot_i > 0) & (tl.load(positions + i, mask=i < lanes, other=0) % CHUNK == CHUNK - 1)).to(tl.int32)
    rank = tl.cumsum(full, 0)
    items = tl.sum(full, 0) * (HV * (V // BLOCK_V))
    r = tl.arange(0, CHUNK)
    column = tl.arange(0, K)[None, :]
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        lane = tl.sum(tl.where((full > 0) & (rank == item // (HV * (V // BLOCK_V)) + 1), i, 0), 0)
        head = item // (V // BLOCK_V) % HV
        value = item % (V // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)
        slot = tl.load(slots + lane).to(tl.int64)
        unit = slot * HV + head
        shared = slot * H + head // (HV // H)
        tile = state + unit * (V * K) + value[:, None] * K + column
        s = tl.load(tile, mask=tl.load(positions + lane) >= CHUNK, other=0.0)
        key = tl.load(keys + (shared * CHUNK + r)[:, None] * K + column)
        val = tl.load(values + (unit * CHUNK + r)[:, None] * V + value[None, :])
        b = tl.load(betas + unit * CHUNK + r)
        G = tl.zeros((CHUNK,), tl.float32)
        last = 0.0
        for t in tl.static_range(CHUNK):
            last = last + tl.load(gates + unit * CHUNK + t) * LOG2E
            G = tl.where(r == t, last, G)
        same = r[:, None] // BLOCK == r[None, :] // BLOCK
        eye = r[:, None] == r[None, :]
        # A, D and C stand transposed, [s, t]
        a = tl.dot(key, tl.trans(key)) * tl.exp2(G[None, :] - G[:, None]) * -b[None, :]
        high, low = _split(tl.where(r[:, None] < r[None, :], a, 0.0))
        high_in, low_in = tl.where(same, high, 0.0), tl.where(same, low, 0.0)
        x = tl.where(eye, 1.0, 0.0)
        for _ in range(BLOCK - 1):
            x_high, x_low = _split(x)
            x = tl.dot(x_high, high_in)
            x = tl.dot(x_low, high_in, x)
            x = tl.where(eye, 1.0, tl.dot(x_high, low_in, x))
        x_high, x_low = _split(x)
        c = tl.dot(x_high, high)
        c = tl.dot(x_low, high, c)
        c = tl.dot(x_high, low, c)
        c = tl.where(same, 0.0, c).to(tl.bfloat16)
        e = tl.exp2(G)[None, :]
        base = (tl.trans(val).to(tl.float32) - tl.dot(s.to(tl.bfloat16), tl.trans(key)) * e) * b[None, :]
        residual = base
        for _ in tl.static_range(CHUNK // BLOCK - 1):
            residual = tl.dot(residual.to(tl.bfloat16), c, base)
        u = tl.dot((residual + 0.0).to(tl.bfloat16), x_high)
        tl.store(tile, _advance(s, u, G, last, key))


def chunk_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    starts: torch.Tensor, scale: float, launch: Mapping[str, int],
    running: torch.Tensor | None = None, slots: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of every chunk from its first state in `starts`; open chunks leave theirs in `running`."""
    (heads, key_width), (v_heads, width), sequences = q.shape[1:], v.shape[1:], cu_seqlens.shape[0] - 1
    out = torch.empty_like(v)
    block_v = min(launch["recurrent_block_v"], width)
    _chunk_recurrent_kernel[(width // block_v, v_heads, starts.shape[0])](
        q, k, v, g, beta, out, cu_seqlens, sequences, starts, v if running is None else running,
        cu_seqlens if slots is None else slots, scale,
        H=heads, HV=v_heads, K=key_width, V=width, BLOCK_V=block_v, LOOKUP=triton.next_power_of_2(sequences),
        KEEP=running is not None, num_warps=launch["recurrent_warps"], num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def cpr_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: CprCaches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One token of each lane: outputs [B,HV,V]; a filled chunk moves the chain on. Null lanes give zeros."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out = torch.empty_like(v)
    dims = {"H": heads, "HV": v_heads, "K": key_width, "V": width, "num_stages": 1, "enable_fp_fusion": False}
    block_v = min(launch["recurrent_block_v"], width)
    _cpr_step_kernel[(width // block_v, v_heads, lanes)](
        q, k, v, g, beta, out, slots, positions, *caches, scale,
        **dims, BLOCK_V=block_v, num_warps=launch["recurrent_warps"],
    )  # fmt: skip
    rest = (caches.state, caches.keys, caches.values, caches.gates, caches.betas)
    block_v = min(64, width)
    _chain_kernel[(min(264, lanes * v_heads * (width // block_v)),)](
        slots, positions, lanes, *rest, **dims, BLOCK_V=block_v, LOOKUP=triton.next_power_of_2(lanes), num_warps=4
    )
    return out
