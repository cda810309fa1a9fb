# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form (Triton): the pass from chunk to chunk, with R, the outputs and the state.

The equations stand in `gdn_prepare_triton`. The state is held transposed, [V,K], so that it, R and U stay in registers
as left operands from one dot to the next.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from .gdn_caches import Caches, CprCaches, States
from .gdn_prepare_triton import BLOCK, CHUNK, _diagonal, tiles
from .gdn_scan_hopper import hopper_scan


@triton.jit
def _tile(x, begin, rows, width, at, LENGTH: tl.constexpr, MASKED: tl.constexpr):
    """Rows [begin, begin + 64) and columns [at, at + LENGTH) of a matrix `width` wide, zero from `rows` on if MASKED.

    x is a descriptor, or with MASKED a pointer: a descriptor would read into the next sequence.
    """
    if MASKED:
        r = tl.arange(0, CHUNK)[:, None]
        tile = tl.load(x + (begin + r) * width + at + tl.arange(0, LENGTH)[None, :], mask=r < rows, other=0.0)
    else:
        tile = x.load([begin.to(tl.int32), at])
    return tile


@triton.jit
def _rows(
    s, q, k, v, inverse, c, f, scalars, out, begin, rows, head, block, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
    MASKED: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """The chunk at row `begin` from its state s [BLOCK_V, K]: R [BLOCK_V, 64] bf16, U = D R in fp32, G, the keys."""
    r = tl.arange(0, CHUNK)
    live = (r < rows) if MASKED else (r < CHUNK)
    shared = head // (HV // H) * K
    value = block * BLOCK_V
    key = _tile(k, begin, rows, H * K, shared, K, MASKED)
    val = _tile(v, begin, rows, HV * V, head * V + value, BLOCK_V, MASKED)
    c = _tile(c, begin, rows, HV * CHUNK, head * CHUNK, CHUNK, MASKED)
    d = _diagonal(inverse, begin, rows, head, HV, 0)
    G = tl.load(scalars + r, mask=live, other=0.0)
    b = tl.load(scalars + CHUNK + r, mask=live, other=0.0)
    p = tl.load(scalars + 2 * CHUNK + r, mask=live, other=0.0)
    e = tl.exp2(G)[None, :]
    snapshot = s.to(tl.bfloat16)
    base = (tl.trans(val).to(tl.float32) - tl.dot(snapshot, tl.trans(key)) * e) * b[None, :]
    residual = base
    for _ in tl.static_range(CHUNK // BLOCK - 1):
        residual = tl.dot(residual.to(tl.bfloat16), tl.trans(c), base)
    residual = (residual + 0.0).to(tl.bfloat16)
    if OUT:
        query = _tile(q, begin, rows, H * K, shared, K, MASKED)
        f = _tile(f, begin, rows, HV * CHUNK, head * CHUNK, CHUNK, MASKED)
        o = tl.dot(snapshot, tl.trans(query)) * e
        o = tl.dot(residual, tl.trans(f), o) + residual.to(tl.float32) * p[None, :]
        o = tl.trans((o * scale).to(tl.bfloat16))
        cells = out + (begin * HV + head) * V + (r * (HV * V))[:, None] + (value + tl.arange(0, BLOCK_V))[None, :]
        tl.store(cells, o, mask=live[:, None])
    return residual, tl.dot(residual, tl.trans(d)), G, key


@triton.jit
def _advance(s, u, G, last, key):
    """S' = exp2(G_last) S + sum_s bf16(exp2(G_last - G_s) u_s) k_s."""
    u = (u * tl.exp2(last - G)[None, :]).to(tl.bfloat16)
    return tl.dot(u, key, s * tl.exp2(last))


@triton.jit
def _scan_kernel(
    q_tiles, k_tiles, v_tiles, c_tiles, f_tiles, q, k, v, inverse, coupling, readout,
    scalars, out, cu_seqlens, state, snapshot, residuals, slots, origin, starts, solved, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
    OUT: tl.constexpr, RESUME: tl.constexpr, KEEP: tl.constexpr, FLUSH: tl.constexpr, OPEN: tl.constexpr,
    TRACE: tl.constexpr, STATE: tl.constexpr, SNAPSHOT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Chunk after chunk of one sequence, for one head and a block of value columns.

    OUT: outputs are written. RESUME: a sequence with origin > 0 starts from its cached state. KEEP: the last chunk
    edge's state goes to its slot, with OPEN its snapshot and the open chunk's R too; FLUSH: the state after the last
    row instead. TRACE: every chunk's first state goes to `starts`, rounded, and U to `solved`.
    """
    block = tl.program_id(0)
    value = block * BLOCK_V + tl.arange(0, BLOCK_V)
    sequence = tl.program_id(1) // HV
    head = tl.program_id(1) % HV
    begin = tl.load(cu_seqlens + sequence).to(tl.int64)
    rows = (tl.load(cu_seqlens + sequence + 1) - begin).to(tl.int32)
    r = tl.arange(0, CHUNK)
    inner = value[:, None] * K + tl.arange(0, K)[None, :]
    s = tl.zeros((BLOCK_V, K), tl.float32)
    if RESUME or KEEP:
        slot = tl.load(slots + sequence)
        own = tl.maximum(slot, 0).to(tl.int64)
        state += own * STATE + head * (V * K)
        if RESUME:
            resumed = (tl.load(origin + sequence) > 0) & (slot > 0)
            s = tl.load(state + inner, mask=resumed, other=0.0)
    first = begin // CHUNK + sequence
    full = rows // CHUNK
    for i in range(full):
        at = begin + i * CHUNK
        place = scalars + ((first + i) * HV + head) * (3 * CHUNK)
        if TRACE:
            tl.store(starts + ((first + i) * HV + head) * (V * K) + inner, s.to(tl.bfloat16))
        residual, u, G, key = _rows(
            s, q_tiles, k_tiles, v_tiles, inverse, c_tiles, f_tiles, place, out, at, CHUNK, head, block, scale,
            H, HV, K, V, BLOCK_V, False, OUT,
        )  # fmt: skip
        if TRACE:
            cells = (at * HV + head) * V + (r * (HV * V))[:, None] + value[None, :]
            tl.store(solved + cells, tl.trans(u.to(tl.bfloat16)))
        s = _advance(s, u, G, tl.load(place + CHUNK - 1), key)
    if full * CHUNK < rows:
        at = begin + full * CHUNK
        rest = rows - full * CHUNK
        place = scalars + ((first + full) * HV + head) * (3 * CHUNK)
        if TRACE:
            tl.store(starts + ((first + full) * HV + head) * (V * K) + inner, s.to(tl.bfloat16))
        residual, u, G, key = _rows(
            s, q, k, v, inverse, coupling, readout, place, out, at, rest, head, block, scale,
            H, HV, K, V, BLOCK_V, True, OUT,
        )  # fmt: skip
        if TRACE:
            cells = (at * HV + head) * V + (r * (HV * V))[:, None] + value[None, :]
            tl.store(solved + cells, tl.trans(u.to(tl.bfloat16)), mask=(r < rest)[:, None])
        if FLUSH:
            s = _advance(s, u, G, tl.load(place + rest - 1), key)
        if KEEP and OPEN:
            kept_r = residuals + own * ROWS + head * (CHUNK * V) + r[None, :] * V + value[:, None]
            tl.store(kept_r, residual, mask=(r < rest)[None, :] & (slot > 0))
    if KEEP:
        kept_s = (slot > 0) & (rows > 0)
        tl.store(state + inner, s, mask=kept_s)
        if OPEN:
            tl.store(snapshot + own * SNAPSHOT + head * (V * K) + inner, s.to(tl.bfloat16), mask=kept_s)


def scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, prepared: tuple[torch.Tensor, ...],
    cu_seqlens: torch.Tensor, scale: float, launch: Mapping[str, int], *,
    caches: Caches | CprCaches | States | None = None,
    slots: torch.Tensor | None = None, origin: torch.Tensor | None = None,
    keep: bool = False, flush: bool = False, trace: bool = False, out: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Outputs [T,HV,V], and with `trace` the state before every chunk [T//64+B,HV,V,K] and U [T,HV,V]; else v."""
    (tokens, v_heads, width), (heads, key_width), sequences = v.shape, q.shape[1:], cu_seqlens.shape[0] - 1
    o = torch.empty_like(v) if out else v
    starts = v.new_empty((tokens // 64 + sequences, v_heads, width, key_width)) if trace else v
    solved = torch.empty_like(v) if trace else v
    state = v if caches is None else caches.state
    snapshot, residuals = (caches.snapshot, caches.residuals) if isinstance(caches, Caches) else (v, v)
    scalars, inverse, coupling, readout = prepared
    slots, origin_of = cu_seqlens if slots is None else slots, cu_seqlens if origin is None else origin
    parts = {
        "OUT": out, "RESUME": origin is not None, "KEEP": keep, "FLUSH": flush,
        "OPEN": isinstance(caches, Caches), "TRACE": trace,
        "STATE": state.stride(0), "SNAPSHOT": snapshot.stride(0), "ROWS": residuals.stride(0),
    }  # fmt: skip
    if launch["scan_schedule"] == "warp_specialised":
        kept = (state, snapshot, residuals)
        hopper_scan(q, k, v, prepared, cu_seqlens, scale, (o, starts, solved), kept, slots, origin_of, **parts)
        return o, starts, solved
    block_v = min(64, width)
    _scan_kernel[(width // block_v, sequences * v_heads)](
        tiles(q, 64, key_width), tiles(k, 64, key_width), tiles(v, 64, block_v), tiles(coupling, 64, 64),
        tiles(readout, 64, 64), q, k, v, inverse, coupling, readout, scalars, o, cu_seqlens, state, snapshot, residuals,
        slots, origin_of, starts, solved, scale, H=heads, HV=v_heads, K=key_width, V=width, BLOCK_V=block_v, **parts,
        num_warps=4, num_stages=3, enable_fp_fusion=False,
    )  # fmt: skip
    return o, starts, solved
