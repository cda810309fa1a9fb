# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunkwise-parallel recurrent (Triton).

The fp32 chain of `gdn_scan_triton` gives every chunk its first state S, rounded; inside a chunk a recurrence gives the
outputs, all chunks in parallel. What it reaches at the end of a chunk is dropped: the next one starts from the chain.

So that a token costs three multiply-adds for each element of the state, the recurrence leaves the decay out of it: with
G the sum of log2 decays from the chunk's first row, as the chain has it, and B the multiple of 32 next to it
towards zero, it moves Z = S * exp2(B - G) on,

    Z <- Z * exp2(B - B_before);  u = (v - Z k exp2(G - B)) (beta exp2(B - G));  Z <- Z + u k^T;
    o = Z q * (exp2(G - B) scale)

whose first factor is 1 but where G crosses a multiple of 32, and then a power of two. Sums over K are those of
`gdn_recurrent_triton`.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .gdn_caches import CprCaches
from .gdn_prepare_triton import BLOCK, CHUNK, LOG2E, _locate, _split
from .gdn_recurrent_hopper import hopper_chunk_recurrent
from .gdn_recurrent_triton import PLACES, _by_place, _cells, _keep_state, _scaled_state, _take, _take_state, _token
from .gdn_scan_triton import _advance

ON_DEVICE = tl.constexpr(not triton.knobs.runtime.interpret)
CHAIN_PROGRAMS = 264  # two on each of 132 multiprocessors
LIFT = tl.constexpr(32.0)


@triton.jit
def _factors(G, former, b):
    """exp2(B - B_before), exp2(G - B) and beta exp2(B - G) of a row."""
    base = (G * (1.0 / LIFT)).to(tl.int32).to(tl.float32) * LIFT
    before = (former * (1.0 / LIFT)).to(tl.int32).to(tl.float32) * LIFT
    return tl.exp2(base - before), tl.exp2(G - base), b * tl.exp2(base - G)


@triton.jit(do_not_specialize=["sequences"])
def _chunk_recurrent_kernel(
    q, k, v, scalars, out, cu_seqlens, sequences, starts, running, decay, slots, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
    KEEP: tl.constexpr,
):  # fmt: skip
    """Outputs of one chunk from `starts`; KEEP: an open chunk's last Z and every G go to `running` and `decay`."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    place = tl.program_id(2)
    begin, rows = _locate(cu_seqlens, sequences, place, LOOKUP)
    if rows > 0:
        own = scalars + (place.to(tl.int64) * HV + head) * (3 * CHUNK)
        s = _take_state(starts + (place.to(tl.int64) * HV + head) * (V * K), value, True, K)
        former = 0.0
        for t in range(rows):
            at = (begin + t) * HV + head
            shared = ((begin + t) * H + head // (HV // H)) * K + _cells(value, 0)
            G = tl.load(own + t)
            lift, e, b = _factors(G, former, tl.load(own + CHUNK + t))
            k_t = _by_place(_take(k + shared, True, K))
            q_t = _by_place(_take(q + shared, True, K))
            v_t = tl.load(v + at * V + value).to(tl.float32)
            s, o = _token(_scaled_state(s, lift, K), q_t, k_t, v_t, e, b, e * scale, K)
            tl.store(out + at * V + value, o.to(out.dtype.element_ty))
            former = G
        if KEEP:
            i = tl.arange(0, LOOKUP)
            ends = tl.load(cu_seqlens + 1 + i, mask=i < sequences, other=2147483647)
            slot = tl.load(slots + tl.sum((ends <= begin).to(tl.int32), 0))
            unit = tl.maximum(slot, 0).to(tl.int64) * HV + head
            kept = (slot > 0) & (rows < CHUNK)
            _keep_state(running + unit * (V * K), value, s, kept, K)
            r = tl.arange(0, CHUNK)
            live = kept & (r < rows) & (tl.program_id(0) == 0)
            tl.store(decay + unit * CHUNK + r, tl.load(own + r, mask=live), mask=live)


@triton.jit
def _cpr_step_kernel(
    q, k, v, g, beta, out, slots, positions, state, running, decay, keys, values, gates, betas, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One recurrent step of each lane and its row appended; the first row of a chunk starts from the rounded chain.

    Nothing here needs what `_chain_kernel`, launched before, writes in the same step; the last program waits for it, so
    that what is launched next comes after both.
    """
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    head = tl.program_id(1)
    lane = tl.program_id(2)
    slot = tl.load(slots + lane)
    token = lane.to(tl.int64) * HV + head
    if slot > 0:
        position = tl.load(positions + lane)
        t = position % CHUNK
        unit = slot.to(tl.int64) * HV + head
        given = (lane.to(tl.int64) * H + head // (HV // H)) * K
        k_t = _by_place(_take(k + given + _cells(value, 0), True, K))
        q_t = _by_place(_take(q + given + _cells(value, 0), True, K))
        v_t = tl.load(v + token * V + value)
        g_t = tl.load(g + token)
        b_t = tl.load(beta + token)
        former = tl.load(decay + unit * CHUNK + t - 1, mask=t > 0, other=0.0)
        G = former + g_t * LOG2E
        held = _take_state(tl.where(t == 0, state, running) + unit * (V * K), value, position > 0, K)
        s = ()
        for i in tl.static_range(K // PLACES):
            s = s + (tl.where(t == 0, held[i].to(tl.bfloat16).to(tl.float32), held[i]),)  # noqa: RUF005
        lift, e, b = _factors(G, former, b_t)
        s, o = _token(_scaled_state(s, lift, K), q_t, k_t, v_t.to(tl.float32), e, b, e * scale, K)
        tl.store(out + token * V + value, o.to(out.dtype.element_ty))
        _keep_state(running + unit * (V * K), value, s, True, K)
        tl.store(values + (unit * CHUNK + t) * V + value, v_t)
        if tl.program_id(0) == 0:
            tl.store(decay + unit * CHUNK + t, G)
            tl.store(gates + unit * CHUNK + t, g_t)
            tl.store(betas + unit * CHUNK + t, b_t)
            if head % (HV // H) == 0:
                column = tl.arange(0, K)
                row = (slot.to(tl.int64) * H + head // (HV // H)) * CHUNK + t
                tl.store(keys + row * K + column, tl.load(k + given + column))
    else:
        tl.store(out + token * V + value, tl.zeros((BLOCK_V,), out.dtype.element_ty))
    if ON_DEVICE and (lane == tl.num_programs(2) - 1) & (head == HV - 1) & (tl.program_id(0) == tl.num_programs(0) - 1):
        gdc_wait()


@triton.jit
def _block_diagonal(x):
    """[4,16,16] as [64,64]."""
    i = tl.arange(0, CHUNK // BLOCK)
    own = i[:, None, None, None] == i[None, None, :, None]
    wide = tl.broadcast_to(x[:, :, None, :], (CHUNK // BLOCK, BLOCK, CHUNK // BLOCK, BLOCK))
    return tl.reshape(tl.where(own, wide, 0.0), (CHUNK, CHUNK))


@triton.jit
def _inverse(key, G, b, K: tl.constexpr):
    """D, transposed, in two parts: `_inverse_kernel` on the four blocks of a chunk beside one another."""
    r = tl.arange(0, BLOCK)
    key = tl.reshape(key, (CHUNK // BLOCK, BLOCK, K))
    G = tl.reshape(G, (CHUNK // BLOCK, BLOCK))
    b = tl.reshape(b, (CHUNK // BLOCK, BLOCK))
    a = tl.dot(key, tl.permute(key, (0, 2, 1))) * tl.exp2(G[:, None, :] - G[:, :, None]) * -b[:, None, :]
    high, low = _split(tl.where((r[:, None] < r[None, :])[None, :, :], a, 0.0))
    eye = (r[:, None] == r[None, :])[None, :, :]
    x = tl.where(eye, 1.0, tl.zeros_like(a))
    for _ in tl.static_range(BLOCK - 1):
        x_high, x_low = _split(x)
        x = tl.dot(x_high, high)
        x = tl.dot(x_low, high, x)
        x = tl.where(eye, 1.0, tl.dot(x_high, low, x))
    x_high, x_low = _split(x)
    return _block_diagonal(x_high), _block_diagonal(x_low)


@triton.jit(do_not_specialize=["lanes"])
def _chain_kernel(
    k, v, g, beta, slots, positions, lanes, state, keys, values, decay, betas,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """The chain over every chunk that this step fills, with the arithmetic of the chunk form. The programs share those
    out: most steps have few or none. The last row is this step's own."""
    if ON_DEVICE:
        gdc_launch_dependents()
    i = tl.arange(0, LOOKUP)
    slot_i = tl.load(slots + i, mask=i < lanes, other=0)
    full = ((slot_i > 0) & (tl.load(positions + i, mask=i < lanes, other=0) % CHUNK == CHUNK - 1)).to(tl.int32)
    rank = tl.cumsum(full, 0)
    items = tl.sum(full, 0) * (HV * (V // BLOCK_V))
    r = tl.arange(0, CHUNK)
    cached = r < CHUNK - 1
    column = tl.arange(0, K)[None, :]
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        lane = tl.sum(tl.where((full > 0) & (rank == item // (HV * (V // BLOCK_V)) + 1), i, 0), 0)
        head = item // (V // BLOCK_V) % HV
        value = item % (V // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)
        slot = tl.load(slots + lane).to(tl.int64)
        unit = slot * HV + head
        shared = slot * H + head // (HV // H)
        token = lane.to(tl.int64) * HV + head
        key = tl.load(keys + (shared * CHUNK + r)[:, None] * K + column, mask=cached[:, None], other=0.0)
        k_t = tl.load(k + (lane.to(tl.int64) * H + head // (HV // H)) * K + column)
        key = tl.where(cached[:, None], key, k_t)
        b = tl.where(cached, tl.load(betas + unit * CHUNK + r, mask=cached, other=0.0), tl.load(beta + token))
        last = tl.load(decay + unit * CHUNK + CHUNK - 2) + tl.load(g + token) * LOG2E
        G = tl.where(cached, tl.load(decay + unit * CHUNK + r, mask=cached, other=0.0), last)
        d_high, d_low = _inverse(key, G, b, K)
        # A, D and C stand transposed, [s, t]
        a = tl.dot(key, tl.trans(key)) * tl.exp2(G[None, :] - G[:, None]) * -b[None, :]
        high, low = _split(tl.where(r[:, None] < r[None, :], a, 0.0))
        c = tl.dot(d_high, high)
        c = tl.dot(d_low, high, c)
        c = tl.dot(d_high, low, c)
        c = tl.where(r[:, None] // BLOCK == r[None, :] // BLOCK, 0.0, c).to(tl.bfloat16)
        tile = state + unit * (V * K) + value[:, None] * K + column
        s = tl.load(tile, mask=tl.load(positions + lane) >= CHUNK, other=0.0)
        val = tl.load(values + (unit * CHUNK + r)[:, None] * V + value[None, :], mask=cached[:, None], other=0.0)
        val = tl.where(cached[:, None], val, tl.load(v + token * V + value)[None, :])
        e = tl.exp2(G)[None, :]
        base = (tl.trans(val).to(tl.float32) - tl.dot(s.to(tl.bfloat16), tl.trans(key)) * e) * b[None, :]
        residual = base
        for _ in tl.static_range(CHUNK // BLOCK - 1):
            residual = tl.dot(residual.to(tl.bfloat16), c, base)
        u = tl.dot((residual + 0.0).to(tl.bfloat16), d_high)
        tl.store(tile, _advance(s, u, G, last, key))


def chunk_recurrent(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: tuple[torch.Tensor, ...], cu_seqlens: torch.Tensor,
    starts: torch.Tensor, scale: float, launch: Mapping[str, int],
    caches: CprCaches | None = None, slots: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] of every chunk from its first state in `starts`; open chunks leave their last Z and their G in
    the caches."""
    (heads, key_width), (v_heads, width), sequences = q.shape[1:], v.shape[1:], cu_seqlens.shape[0] - 1
    out, scalars = torch.empty_like(v), prepared[0]
    running, decay = (scalars, scalars) if caches is None else (caches.running, caches.decay)
    given = (q, k, v, scalars, out, cu_seqlens, sequences, starts, running, decay)
    given = (*given, cu_seqlens if slots is None else slots, scale)
    sizes = {"H": heads, "HV": v_heads, "K": key_width, "V": width, "LOOKUP": triton.next_power_of_2(sequences)}
    if launch["scan_schedule"] == "warp_specialised":
        hopper_chunk_recurrent(given, starts, caches is not None, **sizes)
        return out
    block_v = min(launch["recurrent_block_v"], width)
    _chunk_recurrent_kernel[(width // block_v, v_heads, starts.shape[0])](
        *given, **sizes, BLOCK_V=block_v, KEEP=caches is not None,
        num_warps=launch["recurrent_warps"], num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def cpr_step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    caches: CprCaches, slots: torch.Tensor, positions: torch.Tensor, scale: float, launch: Mapping[str, int],
) -> torch.Tensor:  # fmt: skip
    """One token of each lane: outputs [B,HV,V]; a filled chunk moves the chain on. Null lanes give zeros."""
    (lanes, v_heads, width), (heads, key_width) = v.shape, q.shape[1:]
    out, c = torch.empty_like(v), caches
    dims = {"H": heads, "HV": v_heads, "K": key_width, "V": width, "num_stages": 1, "enable_fp_fusion": False}
    block_v = min(64, width)
    _chain_kernel[(min(CHAIN_PROGRAMS, lanes * v_heads * (width // block_v)),)](
        k, v, g, beta, slots, positions, lanes, c.state, c.keys, c.values, c.decay, c.betas,
        **dims, BLOCK_V=block_v, LOOKUP=triton.next_power_of_2(lanes), num_warps=4,
    )  # fmt: skip
    block_v = min(launch["recurrent_block_v"], width)
    _cpr_step_kernel[(width // block_v, v_heads, lanes)](
        q, k, v, g, beta, out, slots, positions, *caches, scale,
        **dims, BLOCK_V=block_v, num_warps=launch["recurrent_warps"], launch_pdl=True,
    )  # fmt: skip
    return out
