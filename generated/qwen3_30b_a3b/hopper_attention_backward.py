# SPDX-License-Identifier: Apache-2.0
"""Gradients of causal attention over packed sequences, warp-specialised for Hopper; deterministic, no atomics.

With p = exp2(log2_scale * q k^T - lse) and delta = sum(grad * out) of a row: dv = p^T grad, dq = scale * ds k and
dk = scale * ds^T q for ds = p * (grad v^T - delta) (Dao et al., 2022). Tiles of query rows gather dq from the blocks of
keys below them, then tiles of keys gather dk and dv from the queries above them, head by head of their group: each
sum has one owner and one order, and of heads of 256 two owners with half of the heads each. p and ds are rounded to
bf16 before they are multiplied, sums are fp32, each gradient is rounded once.
"""

from __future__ import annotations

import torch
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .attention_splits import sequence_slots
from .hopper_attention import matrix
from .hopper_attention_dkdv import attention_dkdv_kernel
from .hopper_attention_dq import attention_dq_kernel

LOG2_E = 1.4426950408889634


def _total(shares: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The sum over the programs that share a tile, rounded once."""
    return shares[0] if len(shares) == 1 else (shares[0] + shares[1]).to(dtype)


def hopper_attention_backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
    grad: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `attention_backward`, for what `fits`."""
    tokens, heads, width = q.shape
    kv_heads, sequences = k.shape[1], cu_seqlens.shape[0] - 1
    group = heads // kv_heads
    # A tile of few keys is owned by two programs with half of the query heads each, for there are few tiles.
    shares = 2 if width > 128 and group % 2 == 0 else 1
    dq = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    dtype = q.dtype if shares == 1 else torch.float32
    dk, dv = (torch.zeros((shares, *x.shape), dtype=dtype, device=x.device) for x in (k, v))
    grad = grad.contiguous()
    # Of each row, what its exponentials and its ds subtract.
    row_pitch = -(-tokens // 4) * 4 + 4 * sequences
    rows = torch.empty((heads, 2, row_pitch), dtype=torch.float32, device=q.device)
    common = {
        "GROUP": group, "SEQUENCES": sequence_slots(sequences), "SCALE": scale, "LOG2_SCALE": scale * LOG2_E,
        "HEAD_DIM": width, "num_warps": 4, "maxnreg": 168, "enable_fp_fusion": False,
    }  # fmt: skip
    block, stages = (32, 3) if width > 128 else (64, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, block), matrix(v, block)
    attention_dq_kernel[((tokens // (64 // group * 2) + sequences) * kv_heads,)](
        q, k_matrix, v_matrix, out, grad, lse, rows, dq, cu_seqlens, sequences, tokens, row_pitch,
        q.stride(0) // 8, q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads, BLOCK=block, STAGES=stages, **common,
    )  # fmt: skip
    keys, stages = (64, 2) if width > 128 else (128, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, keys), matrix(v, keys)
    (q_matrix, _, *q_steps), (grad_matrix, *_) = matrix(q, 64), matrix(grad, 64)
    row_matrix = TensorDescriptor(rows, [2 * heads, row_pitch], [row_pitch, 1], [2, 64], gl.NVMMASharedLayout(0, 32, 2))
    attention_dkdv_kernel[((tokens // keys + sequences) * kv_heads * shares,)](
        q_matrix, grad_matrix, row_matrix, k_matrix, v_matrix, dk, dv, cu_seqlens, sequences, tokens,
        *q_steps, *k_steps, *v_steps, KEY_HEADS=kv_heads, SHARES=shares, KEYS=keys, STAGES=stages, **common,
    )  # fmt: skip
    return dq, _total(dk, k.dtype), _total(dv, v.dtype)
