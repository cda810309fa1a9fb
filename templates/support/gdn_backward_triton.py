# SPDX-License-Identifier: Apache-2.0
"""Backward of the gated delta rule's chunk form (Triton): deterministic, no claim on bits.

With the names of `gdn_prepare_triton` and dX the gradient of X, per chunk and from the last chunk to the first (B is the
residual before the chunk's own terms, R = B + C R):

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

from .gdn_prepare_triton import BLOCK, CHUNK, _locate
from .gdn_scan_triton import scan

SCAN = {"scan_block_v": 64, "scan_warps": 4, "scan_stages": 2}


@triton.jit
def _reverse_kernel(
    q, k, beta, decay, inverse, coupling, readout, own, grad, cu_seqlens, ends, base, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """dB of every row to `base` [T,HV,V], and dS' of every chunk to `ends` [T//64+B,HV,V,K]; last chunk first."""
    value = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    sequence = tl.program_id(1) // HV
    head = tl.program_id(1) % HV
    begin = tl.load(cu_seqlens + sequence).to(tl.int64)
    rows = (tl.load(cu_seqlens + sequence + 1) - begin).to(tl.int32)
    r = tl.arange(0, CHUNK)
    column = tl.arange(0, K)
    same = r[:, None] // BLOCK == r[None, :] // BLOCK
    inner = value[:, None] * K + column[None, :]
    ds = tl.zeros((BLOCK_V, K), tl.float32)
    chunks = tl.cdiv(rows, CHUNK)
    for j in range(chunks):
        i = chunks - 1 - j
        at = begin + i * CHUNK
        live = r < rows - i * CHUNK
        wide = live[:, None]
        token = r * HV
        head_row = at * HV + head
        keys = (at * H + head // (HV // H)) * K + (r * (H * K))[:, None] + column[None, :]
        tiles = head_row * CHUNK + (token * CHUNK)[:, None] + r[None, :]
        cells = head_row * V + (token * V)[:, None] + value[None, :]
        key = tl.load(k + keys, mask=wide, other=0.0)
        do = tl.trans(tl.load(grad + cells, mask=wide, other=0.0))
        f = tl.load(readout + tiles, mask=wide, other=0.0)
        c = tl.load(coupling + tiles, mask=wide, other=0.0)
        d = inverse + head_row * (2 * BLOCK) + (token * (2 * BLOCK))[:, None] + (r % BLOCK)[None, :]
        d = tl.load(d, mask=wide & same, other=0.0)
        G = tl.load(decay + head_row + token, mask=live, other=0.0)
        b = tl.load(beta + head_row + token, mask=live, other=0.0)
        p = tl.load(own + head_row + token, mask=live, other=0.0)
        last = tl.load(decay + head_row + (CHUNK - 1) * HV, mask=rows - i * CHUNK >= CHUNK, other=0.0)
        e = tl.exp2(G)[None, :]
        passed = ds.to(tl.bfloat16)
        tl.store(ends + ((begin // CHUNK + sequence + i) * HV + head) * (V * K) + inner, passed)
        u = tl.dot(passed, tl.trans(key)) * tl.exp2(last - G)[None, :]
        x = (tl.dot(do, f) + do.to(tl.float32) * p[None, :]) * scale
        x = tl.dot(u.to(tl.bfloat16), d, x)
        y = x
        for _ in tl.static_range(CHUNK // BLOCK - 1):
            y = tl.dot(y.to(tl.bfloat16), c, x)
        tl.store(base + cells, tl.trans(y.to(tl.bfloat16)), mask=wide)
        query = tl.load(q + keys, mask=wide, other=0.0)
        ds = tl.dot((do.to(tl.float32) * (e * scale)).to(tl.bfloat16), query, ds * tl.exp2(last))
        ds = tl.dot((y * (e * -b[None, :])).to(tl.bfloat16), key, ds)


@triton.jit(do_not_specialize=["sequences"])
def _gradient_kernel(
    q, k, v, beta, decay, solved, base, grad, starts, ends, dq, dk, dv, dg, dbeta, cu_seqlens, sequences, scale,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, V: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """dq, dk, dv, dg, dbeta of one chunk and query/key head; its value heads one after the other."""
    slot = tl.program_id(0)
    start, rows = _locate(cu_seqlens, sequences, slot, LOOKUP)
    shared = tl.program_id(1)
    if rows > 0:
        r = tl.arange(0, CHUNK)
        live = r < rows
        wide = live[:, None]
        column = tl.arange(0, K)[None, :]
        value = tl.arange(0, V)[None, :]
        keys = ((start + r) * H + shared)[:, None] * K + column
        key = tl.load(k + keys, mask=wide, other=0.0)
        query = tl.load(q + keys, mask=wide, other=0.0)
        z = tl.dot(key, tl.trans(key))
        zq = tl.dot(query, tl.trans(key))
        dq_sum = tl.zeros((CHUNK, K), tl.float32)
        dk_sum = tl.zeros((CHUNK, K), tl.float32)
        for j in range(HV // H):
            head = shared * (HV // H) + j
            at = (start + r) * HV + head
            cells = at[:, None] * V + value
            tile = (slot.to(tl.int64) * HV + head) * (V * K) + tl.arange(0, V)[:, None] * K + column
            G = tl.load(decay + at, mask=live, other=0.0)
            b = tl.load(beta + at, mask=live, other=0.0)
            last = tl.load(decay + (start + CHUNK - 1) * HV + head, mask=rows == CHUNK, other=0.0)
            e = tl.exp2(G)
            do = tl.load(grad + cells, mask=wide, other=0.0)
            u = tl.load(solved + cells, mask=wide, other=0.0)
            db = tl.load(base + cells, mask=wide, other=0.0)
            s = tl.load(starts + tile)
            ds = tl.load(ends + tile)
            E = tl.where((r[:, None] >= r[None, :]) & wide, tl.exp2(G[:, None] - G[None, :]), 0.0)
            dp = tl.dot(do, tl.trans(u)) * E * scale
            da = tl.where(r[:, None] > r[None, :], tl.dot(db, tl.trans(u)) * -E, 0.0)
            moved = dp * zq + da * z * b[:, None]
            dbeta_t = tl.sum(da * z, 1)
            dG = tl.sum(moved, 1) - tl.sum(moved, 0)
            x = tl.dot(do, s) * (e * scale)[:, None]
            dG += tl.sum(x * query.to(tl.float32), 1)
            dq_sum += tl.dot(dp.to(tl.bfloat16), key, x)
            x = tl.dot(db, s) * e[:, None]
            read = tl.sum(x * key.to(tl.float32), 1)
            dG -= read * b
            dbeta_t += tl.sum(db.to(tl.float32) * tl.load(v + cells, mask=wide, other=0.0).to(tl.float32), 1) - read
            dk_sum -= x * b[:, None]
            x = tl.dot(u, ds) * tl.exp2(last - G)[:, None]
            written = tl.sum(x * key.to(tl.float32), 1)
            dG -= written
            dlast = tl.sum(written, 0) + tl.sum(tl.sum(s.to(tl.float32) * ds.to(tl.float32), 1), 0) * tl.exp2(last)
            dG += tl.where(r == rows - 1, dlast, 0.0)
            da = (da * b[:, None]).to(tl.bfloat16)
            x = tl.dot(da, key, x)
            x = tl.dot(tl.trans(da), key, x)
            dk_sum += tl.dot(tl.trans(dp.to(tl.bfloat16)), query, x)
            tl.store(dv + cells, (db.to(tl.float32) * b[:, None]).to(tl.bfloat16), mask=wide)
            tl.store(dbeta + at, dbeta_t, mask=live)
            tl.store(dg + at, tl.cumsum(dG, 0, reverse=True), mask=live)
        tl.store(dq + keys, dq_sum.to(tl.bfloat16), mask=wide)
        tl.store(dk + keys, dk_sum.to(tl.bfloat16), mask=wide)


def gradients(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    prepared: tuple[torch.Tensor, ...], grad: torch.Tensor, scale: float,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, g, beta from that of the outputs [T,HV,V]."""
    (heads, key_width), (v_heads, width), sequences = q.shape[1:], v.shape[1:], cu_seqlens.shape[0] - 1
    grad = grad.contiguous()
    _, starts, solved = scan(q, k, v, beta, prepared, cu_seqlens, scale, SCAN, trace=True, out=False)
    ends, base = torch.empty_like(starts), torch.empty_like(v)
    block_v = min(64, width)
    dims = {"H": heads, "HV": v_heads, "K": key_width, "V": width, "enable_fp_fusion": False}
    _reverse_kernel[(width // block_v, sequences * v_heads)](
        q, k, beta, *prepared, grad, cu_seqlens, ends, base, scale, **dims, BLOCK_V=block_v, num_warps=4, num_stages=2
    )
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    dg, dbeta = torch.empty_like(beta), torch.empty_like(beta)
    _gradient_kernel[(starts.shape[0], heads)](
        q, k, v, beta, prepared[0], solved, base, grad, starts, ends, dq, dk, dv, dg, dbeta, cu_seqlens, sequences,
        scale, **dims, LOOKUP=triton.next_power_of_2(sequences), num_warps=8, num_stages=1,
    )  # fmt: skip
    return dq, dk, dv, dg, dbeta


class DeltaRule(torch.autograd.Function):
    """`forward(run, q, k, v, g, beta, cu_seqlens, scale)`: run(q, k, v, g, beta) gives (outputs, prepared)."""

    @staticmethod
    def forward(ctx, run, q, k, v, g, beta, cu_seqlens, scale):
        out, prepared = run(q, k, v, g, beta)
        ctx.save_for_backward(q, k, v, beta, cu_seqlens, *prepared)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        q, k, v, beta, cu_seqlens, *prepared = ctx.saved_tensors
        return None, *gradients(q, k, v, beta, cu_seqlens, tuple(prepared), grad, ctx.scale), None, None
