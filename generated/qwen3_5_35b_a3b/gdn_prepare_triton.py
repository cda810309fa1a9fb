# SPDX-License-Identifier: Apache-2.0
"""Gated delta rule, chunk form (Triton): what a chunk needs before its state is known, all chunks in parallel.

A chunk of 64 rows starts from the state S at its first row. With G the sum of log2 decays inside the chunk,
E_ts = exp2(G_t - G_s), k, q, v the rows and beta the write strength, row t solves

    u_t = beta_t (v_t - exp2(G_t) S k_t) - sum_{s<t} A_ts u_s,      A_ts = beta_t E_ts (k_t . k_s)
    o_t = scale (exp2(G_t) S q_t + sum_{s<=t} P_ts u_s),            P_ts = E_ts (q_t . k_s)

in blocks of 16 rows. D = (I + A)^-1 of the diagonal blocks by forward substitution, then, with everything folded onto
the residual R (the right-hand side left after all earlier blocks),

    R_t = beta_t (v_t - exp2(G_t) S k_t) + sum_{s in earlier blocks} C_ts R_s,   C = -A D
    o_t = scale (exp2(G_t) S q_t + sum_{s<t} Q_ts R_s + P_tt R_t),               Q = P D
    S'  = exp2(G_63) S + sum_s exp2(G_63 - G_s) (D R)_s k_s                       (full chunks only)

Row t of D, C, Q and R reads rows no later than t, so `gdn_step_triton` evaluates it alone with the same bits. Within
the chunk the two triangular solves are fixed-point iterations: row t is final after t steps and later steps repeat it.

By chunk slot (`_locate`) and head: scalars fp32 [slots,HV,3,64], the rows' G, beta and P_tt. By token and head:
inverse, D in two bf16 parts [T,HV,2,16]; coupling C and readout Q, bf16 [T,HV,64], zero outside their triangle.
beta and g are fp32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = tl.constexpr(1.4426950408889634)
CHUNK = tl.constexpr(64)
BLOCK = tl.constexpr(16)


@triton.jit
def _locate(cu_seqlens, sequences, slot, LOOKUP: tl.constexpr):
    """First row and row count of a chunk. Chunk j of sequence i has slot cu_seqlens[i] // 64 + i + j: no table."""
    i = tl.arange(0, LOOKUP)
    first = tl.load(cu_seqlens + i, mask=i < sequences, other=0) // CHUNK + i
    sequence = tl.sum(((first <= slot) & (i < sequences)).to(tl.int32), 0) - 1
    begin = tl.load(cu_seqlens + sequence)
    end = tl.load(cu_seqlens + sequence + 1)
    start = begin + (slot - begin // CHUNK - sequence) * CHUNK
    return start.to(tl.int64), tl.minimum(end - start, CHUNK)


@triton.jit
def _split(x):
    """x as the sum of two bf16 parts, 16 bits of its significand."""
    high = x.to(tl.bfloat16)
    return high, (x - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _diagonal(inverse, start, rows, head, HV: tl.constexpr, PART: tl.constexpr):
    """A part of D, 0 high and 1 low, as the chunk's [64, 64] of blocks on the diagonal."""
    r = tl.arange(0, CHUNK)
    cells = ((start + r) * HV + head)[:, None] * (2 * BLOCK) + PART * BLOCK + r[None, :] % BLOCK
    same = r[:, None] // BLOCK == r[None, :] // BLOCK
    return tl.load(inverse + cells, mask=(r < rows)[:, None] & same, other=0.0)


@triton.jit(do_not_specialize=["sequences"])
def _decay_kernel(
    g, beta, scalars, cu_seqlens, sequences, HEADS: tl.constexpr, BLOCK_H: tl.constexpr, LOOKUP: tl.constexpr
):  # fmt: skip
    """G_t = G_{t-1} + g_t * log2(e), in order from the first row of the chunk; beta beside it."""
    start, rows = _locate(cu_seqlens, sequences, tl.program_id(0), LOOKUP)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    place = scalars + (tl.program_id(0).to(tl.int64) * HEADS + head) * (3 * CHUNK)
    total = tl.zeros((BLOCK_H,), tl.float32)
    for begin in range(0, CHUNK, BLOCK):
        gates = ()
        for t in tl.static_range(BLOCK):  # all of a block's loads before its stores, which could alias them
            live = (head < HEADS) & (begin + t < rows)
            at = (start + begin + t) * HEADS + head
            gates += ((tl.load(g + at, mask=live, other=0.0), tl.load(beta + at, mask=live, other=0.0)),)
        for t in tl.static_range(BLOCK):
            live = (head < HEADS) & (begin + t < rows)
            total = total + gates[t][0] * LOG2E
            tl.store(place + begin + t, total, mask=live)
            tl.store(place + CHUNK + begin + t, gates[t][1], mask=live)


@triton.jit(do_not_specialize=["sequences"])
def _inverse_kernel(
    k, scalars, inverse, cu_seqlens, sequences,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, LOOKUP: tl.constexpr,
):  # fmt: skip
    """D = (I + A)^-1 of one diagonal block: row t is e_t - A_t D, three bf16 products of the two-part operands."""
    slot = tl.program_id(0) // (CHUNK // BLOCK)
    start, rows = _locate(cu_seqlens, sequences, slot, LOOKUP)
    begin = tl.program_id(0) % (CHUNK // BLOCK) * BLOCK
    head = tl.program_id(1)
    if begin < rows:
        r = tl.arange(0, BLOCK)
        live = begin + r < rows
        token = start + begin + r
        x = (token * H + head // (HV // H))[:, None] * K + tl.arange(0, K)[None, :]
        key = tl.load(k + x, mask=live[:, None], other=0.0)
        place = scalars + (slot.to(tl.int64) * HV + head) * (3 * CHUNK) + begin + r
        G = tl.load(place, mask=live, other=0.0)
        b = tl.load(place + CHUNK, mask=live, other=0.0)
        a = tl.dot(key, tl.trans(key)) * tl.exp2(G[None, :] - G[:, None]) * -b[None, :]
        # A row that is not there has G = 0: exp2(0 - G_s) may be infinite, and would reach every column.
        high, low = _split(tl.where((r[:, None] < r[None, :]) & live[None, :], a, 0.0))
        eye = r[:, None] == r[None, :]
        x = tl.where(eye, 1.0, 0.0)
        for _ in tl.static_range(BLOCK - 1):
            x_high, x_low = _split(x)
            x = tl.dot(x_high, high)
            x = tl.dot(x_low, high, x)
            x = tl.where(eye, 1.0, tl.dot(x_high, low, x))
        x_high, x_low = _split(x)
        at = (token * HV + head)[None, :] * (2 * BLOCK) + r[:, None]
        tl.store(inverse + at, x_high, mask=live[None, :])
        tl.store(inverse + at + BLOCK, x_low, mask=live[None, :])


@triton.jit(do_not_specialize=["sequences"])
def _fold_kernel(
    q_tiles, k_tiles, scalars, inverse, coupling, readout, cu_seqlens, sequences,
    H: tl.constexpr, HV: tl.constexpr, K: tl.constexpr, LOOKUP: tl.constexpr, READOUT: tl.constexpr,
):  # fmt: skip
    """C = -A D on earlier blocks and, READOUT, Q = P D on earlier rows, each rounded once to bf16; P_tt in fp32.

    Tiles of a short chunk hold rows of the next sequence; only rows after the chunk's last would read them.
    """
    start, rows = _locate(cu_seqlens, sequences, tl.program_id(0), LOOKUP)
    head = tl.program_id(1)
    if rows > 0:
        r = tl.arange(0, CHUNK)
        live = r < rows
        at = (start + r) * HV + head
        key = k_tiles.load([start.to(tl.int32), head // (HV // H) * K])
        place = scalars + (tl.program_id(0).to(tl.int64) * HV + head) * (3 * CHUNK) + r
        G = tl.load(place, mask=live, other=0.0)
        b = tl.load(place + CHUNK, mask=live, other=0.0)
        d_high = _diagonal(inverse, start, rows, head, HV, 0)
        d_low = _diagonal(inverse, start, rows, head, HV, 1)
        E = tl.exp2(G[:, None] - G[None, :])
        earlier = r[:, None] > r[None, :]
        a_high, a_low = _split(tl.where(earlier, tl.dot(key, tl.trans(key)) * E * -b[:, None], 0.0))
        c = tl.dot(a_high, d_high)
        c = tl.dot(a_high, d_low, c)
        c = tl.dot(a_low, d_high, c)
        out = at[:, None] * CHUNK + r[None, :]
        above = r[:, None] // BLOCK > r[None, :] // BLOCK
        tl.store(coupling + out, tl.where(above, c, 0.0).to(tl.bfloat16), mask=live[:, None])
        if READOUT:
            query = q_tiles.load([start.to(tl.int32), head // (HV // H) * K])
            p = tl.dot(query, tl.trans(key))
            p_own = tl.sum(tl.where(r[:, None] == r[None, :], p, 0.0), 1)
            p = tl.where(earlier, p * E, 0.0).to(tl.bfloat16)
            f = tl.dot(p, d_high)
            f = tl.dot(p, d_low, f)
            f = f + p_own[:, None] * (d_high.to(tl.float32) + d_low.to(tl.float32))
            tl.store(readout + out, tl.where(earlier, f, 0.0).to(tl.bfloat16), mask=live[:, None])
            tl.store(place + 2 * CHUNK, p_own, mask=live)


def tiles(x: torch.Tensor, rows: int, columns: int) -> TensorDescriptor:
    """x as a matrix by its first axis, read in tiles of rows x columns."""
    return TensorDescriptor.from_tensor(x.view(x.shape[0], -1), [rows, columns])


def prepare(
    q: torch.Tensor, k: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, cu_seqlens: torch.Tensor,
    readout: bool = True,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """scalars, inverse, coupling, readout of every chunk and row (module docstring): three launches. Without `readout`
    Q and P_tt are left out, which a scan without outputs does not read."""
    (tokens, heads, width), v_heads, sequences = q.shape, g.shape[1], cu_seqlens.shape[0] - 1
    slots, lookup = tokens // 64 + sequences, triton.next_power_of_2(sequences)
    scalars = g.new_empty((slots, v_heads, 3, 64))
    inverse = q.new_empty((tokens, v_heads, 2, 16))
    coupling, folded = q.new_empty((2, tokens, v_heads, 64))
    block_h = min(32, triton.next_power_of_2(v_heads))
    dims = {"H": heads, "HV": v_heads, "K": width, "LOOKUP": lookup, "num_stages": 1, "enable_fp_fusion": False}
    _decay_kernel[(slots, triton.cdiv(v_heads, block_h))](
        g, beta, scalars, cu_seqlens, sequences,
        HEADS=v_heads, BLOCK_H=block_h, LOOKUP=lookup, num_warps=1, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    _inverse_kernel[(4 * slots, v_heads)](k, scalars, inverse, cu_seqlens, sequences, **dims, num_warps=1)
    _fold_kernel[(slots, v_heads)](
        tiles(q, 64, width), tiles(k, 64, width), scalars, inverse, coupling, folded, cu_seqlens, sequences,
        **dims, READOUT=readout, num_warps=4, maxnreg=168,
    )  # fmt: skip
    return scalars, inverse, coupling, folded
