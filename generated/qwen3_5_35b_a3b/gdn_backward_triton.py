# SPDX-License-Identifier: Apache-2.0
"""Backward of the gated delta rule's chunk form (Triton): deterministic, no claim on bits.

With the names of `gdn_prepare_triton` and dX the gradient of X, per chunk and from the last chunk to the first (B is
the residual before the chunk's own terms, R = B + C R):

    dR = D^T (exp2(G_63 - G) K dS') + scale (Q^T dO + P_tt dO);   dB = dR + C^T dB
    dS = exp2(G_63) dS' + scale Q_rows^T (exp2(G) dO) - K^T (beta exp2(G) dB)

then, all chunks in parallel, with U = D R, dP = scale dO U^T and dA = -dB U^T on the triangle,

    dq = scale exp2(G) dO S^T + (dP E) k
    dk = -beta exp2(G) dB S^T + exp2(G_63 - G) U dS'^T + (dZ + dZ^T) k + (dP E)^T q,   dZ = beta dA E
    dv = beta dB;  dbeta = rows of dB (V - exp2(G) K S) + dA E (k k^T)
    dg = sums to the chunk's end of dG, the derivative by every exponent that holds G

S and dS' are kept per chunk in bf16. The scan is run again to get S and U: the forward saves neither.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .gdn_prepare_triton import CHUNK, _diagonal, _locate, tiles
from .gdn_reverse_hopper import hopper_reverse
from .gdn_scan_triton import _tile, scan

NEVER = tl.constexpr(float("-inf"))  # log2 of what a chunk without its last row leaves to the next: nothing
# The interpreter knows no Gluon.
SCAN = {"scan_schedule": "tiles" if triton.knobs.runtime.interpret else "warp_specialised"}


@triton.jit
def _reverse_rows(
    ds, q, k, inverse, c, f, grad, scalars, ends, base, begin, rows, head, block, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """One chunk from dS' = ds [BLOCK_V, K]: stores ds and dB, returns dS."""
    r = tl.arange(0, CHUNK)
    live = (r < rows) if MASKED else (r < CHUNK)
    shared = head // (HV // H) * K
    value = block * BLOCK_V + tl.arange(0, BLOCK_V)
    key = _tile(k, begin, rows, H * K, shared, K, MASKED)
    do = tl.trans(_tile(grad, begin, rows, HV * V, head * V + block * BLOCK_V, BLOCK_V, MASKED))
    f = _tile(f, begin, rows, HV * CHUNK, head * CHUNK, CHUNK, MASKED)
    c = _tile(c, begin, rows, HV * CHUNK, head * CHUNK, CHUNK, MASKED)
    d = _diagonal(inverse, begin, rows, head, HV, 0)
    query = _tile(q, begin, rows, H * K, shared, K, MASKED)
    G = tl.load(scalars + r, mask=live, other=0.0)
    b = tl.load(scalars + CHUNK + r, mask=live, other=0.0)
    p = tl.load(scalars + 2 * CHUNK + r, mask=live, other=0.0)
    last = NEVER if MASKED else tl.load(scalars + CHUNK - 1)
    passed = ds.to(tl.bfloat16)
    tl.store(ends + value[:, None] * K + tl.arange(0, K)[None, :], passed)
    u = tl.dot(passed, tl.trans(key)) * tl.exp2(last - G)[None, :]
    x = (tl.dot(do, f) + do.to(tl.float32) * p[None, :]) * scale
    x = tl.dot(u.to(tl.bfloat16), d, x)
    y = x
    for _ in tl.static_range(CHUNK // 16 - 1):
        y = tl.dot(y.to(tl.bfloat16), c, x)
    cells = base + (begin * HV + head) * V + (r * (HV * V))[:, None] + value[None, :]
    tl.store(cells, tl.trans(y.to(tl.bfloat16)), mask=live[:, None])
    e = tl.exp2(G)[None, :]
    ds = tl.dot((do.to(tl.float32) * (e * scale)).to(tl.bfloat16), query, ds * tl.exp2(last))
    return tl.dot((y * (e * -b[None, :])).to(tl.bfloat16), key, ds)


@triton.jit
def _reverse_kernel(
    q_tiles, k_tiles, c_tiles, f_tiles, g_tiles, q, k, inverse, coupling, readout, grad,
    scalars, cu_seqlens, ends, base, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dB of every row to `base` [T,HV,V], and dS' of every chunk to `ends` [T//64+B,HV,V,K]; last chunk first."""
    block = tl.program_id(0)
    sequence = tl.program_id(1) // HV
    head = tl.program_id(1) % HV
    begin = tl.load(cu_seqlens + sequence).to(tl.int64)
    rows = (tl.load(cu_seqlens + sequence + 1) - begin).to(tl.int32)
    ds = tl.zeros((BLOCK_V, K), tl.float32)
    full = rows // CHUNK
    unit = (begin // CHUNK + sequence + full) * HV + head
    if full * CHUNK < rows:
        ds = _reverse_rows(
            ds, q, k, inverse, coupling, readout, grad, scalars + unit * (3 * CHUNK), ends + unit * (V * K), base,
            begin + full * CHUNK, rows - full * CHUNK, head, block, scale, H, HV, K, V, BLOCK_V, True,
        )  # fmt: skip
    for i in range(full):
        unit -= HV
        ds = _reverse_rows(
            ds, q_tiles, k_tiles, inverse, c_tiles, f_tiles, g_tiles, scalars + unit * (3 * CHUNK),
            ends + unit * (V * K), base, begin + (full - 1 - i) * CHUNK, CHUNK, head, block, scale,
            H, HV, K, V, BLOCK_V, False,
        )  # fmt: skip


@triton.jit(do_not_specialize=["sequences"])
def _gradient_kernel(
    q, k, v_tiles, u_tiles, b_tiles, g_tiles, s_tiles, e_tiles, scalars, dq, dk, dv, dg, dbeta,
    cu_seqlens, sequences, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv, dg, dbeta of one chunk and query/key head; its value heads one after the other.

    Tiles of a short chunk hold rows of the next sequence: E is zero there, and nothing of them is stored.
    """
    slot = tl.program_id(0)
    start, rows = _locate(cu_seqlens, sequences, slot, LOOKUP)
    shared = tl.program_id(1)
    if rows > 0:
        row = start.to(tl.int32)
        r = tl.arange(0, CHUNK)
        live = r < rows
        keys = ((start + r) * H + shared)[:, None] * K + tl.arange(0, K)[None, :]
        key = tl.load(k + keys, mask=live[:, None], other=0.0)
        query = tl.load(q + keys, mask=live[:, None], other=0.0)
        dq_sum = tl.zeros((CHUNK, K), tl.float32)
        dk_sum = tl.zeros((CHUNK, K), tl.float32)
        for j in range(HV // H):
            head = shared * (HV // H) + j
            at = (start + r) * HV + head
            place = scalars + (slot.to(tl.int64) * HV + head) * (3 * CHUNK)
            G = tl.load(place + r, mask=live, other=0.0)
            b = tl.load(place + CHUNK + r, mask=live, other=0.0)
            last = tl.load(place + CHUNK - 1, mask=rows == CHUNK, other=NEVER)
            dp = tl.zeros((CHUNK, CHUNK), tl.float32)
            da = tl.zeros((CHUNK, CHUNK), tl.float32)
            read_q = tl.zeros((CHUNK, K), tl.float32)
            read_k = tl.zeros((CHUNK, K), tl.float32)
            written = tl.zeros((CHUNK, K), tl.float32)
            dbeta_t = tl.zeros((CHUNK,), tl.float32)
            carried = tl.zeros((BLOCK_V,), tl.float32)
            for i in range(V // BLOCK_V):
                column = head * V + i * BLOCK_V
                do = g_tiles.load([row, column])
                u = u_tiles.load([row, column])
                db = b_tiles.load([row, column])
                s = s_tiles.load([(slot * HV + head) * V + i * BLOCK_V, 0])
                ds = e_tiles.load([(slot * HV + head) * V + i * BLOCK_V, 0])
                dp = tl.dot(do, tl.trans(u), dp)
                da = tl.dot(db, tl.trans(u), da)
                read_q = tl.dot(do, s, read_q)
                read_k = tl.dot(db, s, read_k)
                written = tl.dot(u, ds, written)
                dbeta_t += tl.sum(db.to(tl.float32) * v_tiles.load([row, column]).to(tl.float32), 1)
                carried += tl.sum(s.to(tl.float32) * ds.to(tl.float32), 1)
                cells = dv + at[:, None] * V + (i * BLOCK_V + tl.arange(0, BLOCK_V))[None, :]
                tl.store(cells, (db.to(tl.float32) * b[:, None]).to(tl.bfloat16), mask=live[:, None])
            e = tl.exp2(G)
            E = tl.where((r[:, None] >= r[None, :]) & live[:, None], tl.exp2(G[:, None] - G[None, :]), 0.0)
            dp = dp * E * scale
            da = tl.where(r[:, None] > r[None, :], da * -E, 0.0)
            moved = da * tl.dot(key, tl.trans(key))
            dbeta_t += tl.sum(moved, 1)
            moved = dp * tl.dot(query, tl.trans(key)) + moved * b[:, None]
            dG = tl.sum(moved, 1) - tl.sum(moved, 0)
            read_q = read_q * (e * scale)[:, None]
            dG += tl.sum(read_q * query.to(tl.float32), 1)
            dp = dp.to(tl.bfloat16)
            dq_sum += tl.dot(dp, key, read_q)
            read_k = read_k * e[:, None]
            taken = tl.sum(read_k * key.to(tl.float32), 1)
            dG -= taken * b
            dbeta_t -= taken
            written = written * tl.exp2(last - G)[:, None]
            given = tl.where(live, tl.sum(written * key.to(tl.float32), 1), 0.0)
            dlast = tl.sum(given, 0) + tl.sum(carried, 0) * tl.exp2(last)
            dG += tl.where(r == rows - 1, dlast, 0.0) - given
            da = (da * b[:, None]).to(tl.bfloat16)
            written = tl.dot(da, key, written - read_k * b[:, None])
            written = tl.dot(tl.trans(da), key, written)
            dk_sum += tl.dot(tl.trans(dp), query, written)
            tl.store(dbeta + at, dbeta_t, mask=live)
            tl.store(dg + at, tl.cumsum(tl.where(live, dG, 0.0), 0, reverse=True), mask=live)
        tl.store(dq + keys, dq_sum.to(tl.bfloat16), mask=live[:, None])
        tl.store(dk + keys, dk_sum.to(tl.bfloat16), mask=live[:, None])


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor,
    prepared: tuple[torch.Tensor, ...], grad: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, g, beta from that of the outputs [T,HV,V]."""
    (tokens, heads, key_width), (v_heads, width), sequences = q.shape, v.shape[1:], cu_seqlens.shape[0] - 1
    dg, dbeta = prepared[0].new_zeros((2, tokens, v_heads))  # the context that this call makes is what descriptors need
    grad = grad.contiguous()
    scalars, inverse, coupling, readout = prepared
    _, starts, solved = scan(q, k, v, prepared, cu_seqlens, scale, SCAN, trace=True, out=False)
    ends, base = torch.empty_like(starts), torch.empty_like(v)
    block_v = min(64, width)
    dims = {"H": heads, "HV": v_heads, "K": key_width, "V": width, "BLOCK_V": block_v, "enable_fp_fusion": False}
    g_tiles = tiles(grad, 64, block_v)
    if SCAN["scan_schedule"] == "warp_specialised":
        hopper_reverse(q, k, prepared, grad, cu_seqlens, scale, ends, base)
    else:
        _reverse_kernel[(width // block_v, sequences * v_heads)](
            tiles(q, 64, key_width), tiles(k, 64, key_width), tiles(coupling, 64, 64), tiles(readout, 64, 64), g_tiles,
            q, k, inverse, coupling, readout, grad, scalars, cu_seqlens, ends, base, scale,
            **dims, num_warps=4, num_stages=3,
        )  # fmt: skip
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    states = (tiles(x.view(-1, key_width), block_v, key_width) for x in (starts, ends))
    _gradient_kernel[(starts.shape[0], heads)](
        q, k, tiles(v, 64, block_v), tiles(solved, 64, block_v), tiles(base, 64, block_v), g_tiles, *states,
        scalars, dq, dk, dv, dg, dbeta, cu_seqlens, sequences, scale,
        **dims, LOOKUP=triton.next_power_of_2(sequences), num_warps=8, num_stages=2,
    )  # fmt: skip
    return dq, dk, dv, dg, dbeta


class DeltaRule(torch.autograd.Function):
    """`forward(run, q, k, v, g, beta, cu_seqlens, scale)`: run(q, k, v, g, beta) gives (outputs, prepared)."""

    @staticmethod
    def forward(ctx, run, q, k, v, g, beta, cu_seqlens, scale):
        out, prepared = run(q, k, v, g, beta)
        ctx.save_for_backward(q, k, v, cu_seqlens, *prepared)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, cu_seqlens, *prepared = ctx.saved_tensors
        return None, *gradients(q, k, v, cu_seqlens, tuple(prepared), grad, ctx.scale), None, None
