# SPDX-License-Identifier: Apache-2.0
"""Gradients of causal attention over packed sequences: recomputed from each row's log-sum, deterministic, no atomics.

The probabilities are p = exp2(scale * log2(e) * q k^T - lse). With delta = sum(grad * out) of a row,
dv = p^T grad, ds = p * (grad v^T - delta), dq = scale * ds k, dk = scale * ds^T q (Dao et al., 2022). Every query tile
gathers its dq from the key blocks below it, then every key tile its dk and dv from the query blocks above it, head by
head of its group: each sum has one owner and one order. p and ds are rounded to bf16 before they are multiplied, sums
are fp32, and each gradient is rounded once. No contract pins these bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_LOG2_E = 1.4426950408889634


@triton.jit
def _tile(cu_seqlens, sequences, slot, SEQUENCES: tl.constexpr, BLOCK: tl.constexpr):
    """Start and length of the sequence that owns a slot, and the slot's first row in it; past its end when empty."""
    index = tl.arange(0, SEQUENCES)
    begin = tl.load(cu_seqlens + index, mask=index < sequences, other=0)
    sequence = tl.max(tl.where((index < sequences) & (begin // BLOCK + index <= slot), index, 0), 0)
    start = tl.load(cu_seqlens + sequence)
    return start, tl.load(cu_seqlens + sequence + 1) - start, (slot - start // BLOCK - sequence) * BLOCK


@triton.jit
def _scaled(scores, offset, log2_scale):
    return tl.exp2(tl.fma(scores, tl.full(scores.shape, log2_scale, tl.float32), tl.broadcast_to(offset, scores.shape)))


@triton.jit
def _query_step(q, grad, lse, delta, k, v, first, length, token, k_token, v_token, log2_scale, dq,
                HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, EDGE: tl.constexpr):  # fmt: skip
    key = first + tl.arange(0, BLOCK_N)
    column = tl.arange(0, HEAD_DIM)[None, :]
    known = (key < length)[:, None]
    k_rows = k + key.to(tl.int64)[:, None] * k_token + column
    v_rows = v + key.to(tl.int64)[:, None] * v_token + column
    k_tile = tl.load(k_rows, mask=known, other=0.0) if EDGE else tl.load(k_rows)
    v_tile = tl.load(v_rows, mask=known, other=0.0) if EDGE else tl.load(v_rows)
    p = _scaled(tl.dot(q, tl.trans(k_tile)), -lse[:, None], log2_scale)
    if EDGE:
        p = tl.where(key[None, :] <= token[:, None], p, 0.0)
    ds = p * (tl.dot(grad, tl.trans(v_tile)) - delta[:, None])
    return tl.dot(ds.to(tl.bfloat16), k_tile, dq)


@triton.jit(do_not_specialize=["sequences", "tokens", "q_token", "q_head", "k_token", "k_head", "v_token", "v_head"])
def _attention_dq_kernel(q, k, v, out, lse, grad, delta, dq, cu_seqlens, sequences, tokens, q_token, q_head, k_token,
                         k_head, v_token, v_head, scale, log2_scale, HEADS: tl.constexpr, GROUP: tl.constexpr,
                         HEAD_DIM: tl.constexpr, SEQUENCES: tl.constexpr, BLOCK_M: tl.constexpr,
                         BLOCK_N: tl.constexpr):  # fmt: skip
    """dq and delta of BLOCK_M rows of one query head; strides in units of 8 elements."""
    slot = tl.num_programs(0) - 1 - tl.program_id(0)  # long rows first
    start, length, first = _tile(cu_seqlens, sequences, slot, SEQUENCES, BLOCK_M)
    if first >= length:
        return
    head = tl.program_id(1)
    token = first + tl.arange(0, BLOCK_M)
    valid = token < length
    column = tl.arange(0, HEAD_DIM)[None, :]
    row = (start + token).to(tl.int64)
    q_tile = tl.load(q + row[:, None] * (q_token * 8) + head * (q_head * 8) + column, mask=valid[:, None], other=0.0)
    head_row = head.to(tl.int64) * tokens + start + token
    row = row * HEADS + head
    grad_tile = tl.load(grad + row[:, None] * HEAD_DIM + column, mask=valid[:, None], other=0.0)
    out_tile = tl.load(out + row[:, None] * HEAD_DIM + column, mask=valid[:, None], other=0.0)
    delta_rows = tl.sum(grad_tile.to(tl.float32) * out_tile.to(tl.float32), 1)
    tl.store(delta + head_row, delta_rows, mask=valid)
    lse_rows = tl.load(lse + head_row, mask=valid, other=0.0)
    k += start.to(tl.int64) * (k_token * 8) + head // GROUP * (k_head * 8)
    v += start.to(tl.int64) * (v_token * 8) + head // GROUP * (v_head * 8)
    dq_rows = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    whole = first // BLOCK_N
    for block in range(whole):
        dq_rows = _query_step(q_tile, grad_tile, lse_rows, delta_rows, k, v, block * BLOCK_N, length, token,
                              k_token * 8, v_token * 8, log2_scale, dq_rows, HEAD_DIM, BLOCK_N, False)  # fmt: skip
    for block in range(whole, tl.cdiv(tl.minimum(first + BLOCK_M, length), BLOCK_N)):
        dq_rows = _query_step(q_tile, grad_tile, lse_rows, delta_rows, k, v, block * BLOCK_N, length, token,
                              k_token * 8, v_token * 8, log2_scale, dq_rows, HEAD_DIM, BLOCK_N, True)  # fmt: skip
    tl.store(dq + row[:, None] * HEAD_DIM + column, (dq_rows * scale).to(tl.bfloat16), mask=valid[:, None])


@triton.jit
def _key_step(k, v, q, grad, lse, delta, first, length, key, q_token, log2_scale, dk, dv, HEADS: tl.constexpr,
              HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, EDGE: tl.constexpr):  # fmt: skip
    token = first + tl.arange(0, BLOCK_M)
    valid = token < length
    column = tl.arange(0, HEAD_DIM)[None, :]
    row = token.to(tl.int64)
    q_tile = tl.load(q + row[:, None] * q_token + column, mask=valid[:, None], other=0.0)
    grad_tile = tl.load(grad + row[:, None] * (HEADS * HEAD_DIM) + column, mask=valid[:, None], other=0.0)
    lse_rows = tl.load(lse + token, mask=valid, other=0.0)
    delta_rows = tl.load(delta + token, mask=valid, other=0.0)
    p = _scaled(tl.dot(k, tl.trans(q_tile)), -lse_rows[None, :], log2_scale)
    if EDGE:
        p = tl.where(key[:, None] <= token[None, :], p, 0.0)
    dv = tl.dot(p.to(tl.bfloat16), grad_tile, dv)
    ds = p * (tl.dot(v, tl.trans(grad_tile)) - delta_rows[None, :])
    return tl.dot(ds.to(tl.bfloat16), q_tile, dk), dv


@triton.jit(do_not_specialize=["sequences", "tokens", "q_token", "q_head", "k_token", "k_head", "v_token", "v_head"])
def _attention_dkdv_kernel(q, k, v, lse, grad, delta, dk, dv, cu_seqlens, sequences, tokens, q_token, q_head, k_token,
                           k_head, v_token, v_head, scale, log2_scale, HEADS: tl.constexpr, GROUP: tl.constexpr,
                           HEAD_DIM: tl.constexpr, SEQUENCES: tl.constexpr, BLOCK_M: tl.constexpr,
                           BLOCK_N: tl.constexpr):  # fmt: skip
    """dk and dv of BLOCK_N keys of one key head, over the query heads of its group in order."""
    start, length, first = _tile(cu_seqlens, sequences, tl.program_id(0), SEQUENCES, BLOCK_N)
    if first >= length:
        return
    kv_head = tl.program_id(1)
    key = first + tl.arange(0, BLOCK_N)
    known = key < length
    column = tl.arange(0, HEAD_DIM)[None, :]
    row = (start + key).to(tl.int64)
    k_tile = tl.load(k + row[:, None] * (k_token * 8) + kv_head * (k_head * 8) + column, mask=known[:, None], other=0.0)
    v_tile = tl.load(v + row[:, None] * (v_token * 8) + kv_head * (v_head * 8) + column, mask=known[:, None], other=0.0)
    dk_rows = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv_rows = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    begin = start.to(tl.int64)
    edge = first // BLOCK_M
    whole = tl.cdiv(first + BLOCK_N, BLOCK_M)
    blocks = tl.cdiv(length, BLOCK_M)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        q_rows = q + begin * (q_token * 8) + head * (q_head * 8)
        grad_rows = grad + (begin * HEADS + head) * HEAD_DIM
        lse_rows = lse + head.to(tl.int64) * tokens + begin
        delta_rows = delta + head.to(tl.int64) * tokens + begin
        for block in range(edge, tl.minimum(whole, blocks)):
            dk_rows, dv_rows = _key_step(k_tile, v_tile, q_rows, grad_rows, lse_rows, delta_rows, block * BLOCK_M,
                                         length, key, q_token * 8, log2_scale, dk_rows, dv_rows, HEADS, HEAD_DIM,
                                         BLOCK_M, True)  # fmt: skip
        for block in range(whole, blocks):
            dk_rows, dv_rows = _key_step(k_tile, v_tile, q_rows, grad_rows, lse_rows, delta_rows, block * BLOCK_M,
                                         length, key, q_token * 8, log2_scale, dk_rows, dv_rows, HEADS, HEAD_DIM,
                                         BLOCK_M, False)  # fmt: skip
    row = (row * (HEADS // GROUP) + kv_head)[:, None] * HEAD_DIM + column
    tl.store(dk + row, (dk_rows * scale).to(tl.bfloat16), mask=known[:, None])
    tl.store(dv + row, dv_rows.to(tl.bfloat16), mask=known[:, None])


def attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v, contiguous, in their dtype; rows past the last sequence are zero.

    q, out, grad: [T, q_heads, D] bf16; k, v: [T, kv_heads, D] bf16; lse: [q_heads, T] fp32, log2 of the row's sum of
    exp2(scale * log2(e) * scores); cu_seqlens: [B + 1] int32.
    """
    tokens, heads, width = q.shape
    sequences, group = cu_seqlens.shape[0] - 1, heads // k.shape[1]
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if tokens == 0 or sequences == 0:
        return dq, dk, dv
    grad, delta = grad.contiguous(), torch.empty_like(lse)
    strides = [s // 8 for x in (q, k, v) for s in x.stride()[:2]]
    common = {"HEADS": heads, "GROUP": group, "HEAD_DIM": width, "SEQUENCES": 1 << (sequences - 1).bit_length()}
    factors = (scale, scale * _LOG2_E)
    block_m, block_n = (64, 32) if width > 128 else (128, 64)
    _attention_dq_kernel[(tokens // block_m + sequences, heads)](
        q, k, v, out, lse, grad, delta, dq, cu_seqlens, sequences, tokens, *strides, *factors, **common,
        BLOCK_M=block_m, BLOCK_N=block_n, num_warps=8, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    block_m, block_n = (32, 64) if width > 128 else (64, 128)
    _attention_dkdv_kernel[(tokens // block_n + sequences, k.shape[1])](
        q, k, v, lse, grad, delta, dk, dv, cu_seqlens, sequences, tokens, *strides, *factors, **common, BLOCK_M=block_m,
        BLOCK_N=block_n, num_warps=8, num_stages=2, enable_fp_fusion=False,
    )  # fmt: skip
    return dq, dk, dv
