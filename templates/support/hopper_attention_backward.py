# SPDX-License-Identifier: Apache-2.0
"""Gradients of causal attention over packed sequences, warp-specialised for Hopper; deterministic, no atomics.

With p = exp2(log2_scale * q k^T - lse) and delta = sum(grad * out) of a row: dv = p^T grad, dq = scale * ds k and
dk = scale * ds^T q for ds = p * (grad v^T - delta) (Dao et al., 2022). Tiles of query rows gather dq from the blocks of
keys below them, then tiles of keys gather dk and dv from the queries above them, head by head of their group: each
sum has one owner and one order. p and ds are rounded to bf16 before they are multiplied, sums are fp32, each gradient
is rounded once.
"""

from __future__ import annotations

import torch

from .attention_splits import sequence_slots
from .hopper_attention import matrix
from .hopper_attention_dkdv import attention_dkdv_kernel
from .hopper_attention_dq import attention_dq_kernel

LOG2_E = 1.4426950408889634


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
    dq, dk, dv = (torch.zeros(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    grad, delta = grad.contiguous(), torch.empty_like(lse)
    common = {
        "GROUP": group, "SEQUENCES": sequence_slots(sequences), "SCALE": scale, "LOG2_SCALE": scale * LOG2_E,
        "HEAD_DIM": width, "num_warps": 4, "maxnreg": 168, "enable_fp_fusion": False,
    }  # fmt: skip
    block, stages = (32, 3) if width > 128 else (64, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, block), matrix(v, block)
    attention_dq_kernel[((tokens // (64 // group * 2) + sequences) * kv_heads,)](
        q, k_matrix, v_matrix, out, grad, lse, delta, dq, cu_seqlens, sequences, tokens, q.stride(0) // 8,
        q.stride(1) // 8, *k_steps, *v_steps, HEADS=heads, BLOCK=block, STAGES=stages, **common,
    )  # fmt: skip
    keys, stages = (64, 2) if width > 128 else (128, 4)
    (k_matrix, _, *k_steps), (v_matrix, _, *v_steps) = matrix(k, keys), matrix(v, keys)
    (q_matrix, _, *q_steps), (grad_matrix, *_) = matrix(q, 64), matrix(grad, 64)
    attention_dkdv_kernel[((tokens // keys + sequences) * kv_heads,)](
        q_matrix, grad_matrix, k_matrix, v_matrix, lse, delta, dk, dv, cu_seqlens, sequences, tokens, *q_steps,
        *k_steps, *v_steps, KEY_HEADS=kv_heads, KEYS=keys, STAGES=stages, **common,
    )  # fmt: skip
    return dq, dk, dv
