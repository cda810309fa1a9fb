# SPDX-License-Identifier: Apache-2.0
"""The gradient of a shard of logits from that of its targets' log-probabilities."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .elementary_triton import exp_nonpositive


@triton.jit(do_not_specialize=["start"])
def _shard_gradient_kernel(
    logits, targets, normalisers, gradient, out, start, RECIPROCAL: tl.constexpr, VOCAB: tl.constexpr,
    WIDTH: tl.constexpr, ROW: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    gdc_launch_dependents()
    gdc_wait()
    z = tl.load(logits + row * ROW + column, mask=column < WIDTH, other=0.0) * RECIPROCAL
    probability = exp_nonpositive((z - tl.load(normalisers + row * 2)) - tl.load(normalisers + row * 2 + 1))
    chosen = tl.where(start + column == tl.load(targets + row), 1.0, 0.0)
    result = (chosen - probability) * (tl.load(gradient + row) * RECIPROCAL)
    tl.store(out + row * WIDTH + column, tl.where(start + column < VOCAB, result, 0.0), column < WIDTH)


def shard_gradient(
    logits: torch.Tensor, targets: torch.Tensor, normalisers: torch.Tensor, gradient: torch.Tensor, *, start: int,
    vocab: int, scale: float, size: int, num_warps: int,
) -> torch.Tensor:  # fmt: skip
    """Logits [T, V/W] from column `start` on, targets [T], normalisers [T, 2], gradient [T] -> [T, V/W], 0 from column
    `vocab` of the vocabulary on.
    """
    rows, width = logits.shape
    out = logits.new_empty(rows, width)
    if rows:
        _shard_gradient_kernel[rows, triton.cdiv(width, size)](
            logits, targets.contiguous(), normalisers, gradient.contiguous(), out, start, RECIPROCAL=scale, VOCAB=vocab,
            WIDTH=width, ROW=logits.stride(0), SIZE=size, num_warps=num_warps, num_stages=1, enable_fp_fusion=False,
            launch_pdl=True,
        )  # fmt: skip
    return out
