# SPDX-License-Identifier: Apache-2.0
"""The list of where packed sequences begin, refused by its values on the device: the host waits for none of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import gdn_arguments

ON_DEVICE = not triton.knobs.runtime.interpret


@triton.jit
def _stop(wrong):
    """Where `wrong` is true, stop the device's work for good."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $1, 0; @p trap; mov.u32 $0, 0; }",
        "=r,r",
        [wrong.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["sequences", "tokens"])
def _refuse_kernel(cu_seqlens, sequences, tokens, LOOKUP: tl.constexpr):
    i = tl.arange(0, LOOKUP)
    begin = tl.load(cu_seqlens + i, mask=i < sequences, other=0)
    falls = tl.load(cu_seqlens + 1 + i, mask=i < sequences, other=0) < begin
    wrong = tl.sum((falls & (i < sequences)).to(tl.int32), 0) > 0
    _stop(wrong | (tl.load(cu_seqlens) != 0) | (tl.load(cu_seqlens + sequences) != tokens))


def check_cu_seqlens(cu_seqlens: torch.Tensor, tokens: int) -> None:
    """As `gdn_arguments.check_cu_seqlens`, and by value on the device too: on a list that does not start at 0, falls,
    or does not end at T, nothing that was launched later runs, and the next call that waits for the device raises.
    CUDA-graph capturable."""
    gdn_arguments.check_cu_seqlens(cu_seqlens, tokens)
    if ON_DEVICE:
        sequences = cu_seqlens.shape[0] - 1
        _refuse_kernel[(1,)](
            cu_seqlens, sequences, tokens, LOOKUP=triton.next_power_of_2(max(sequences, 1)), num_warps=1, num_stages=1,
            enable_fp_fusion=False,
        )  # fmt: skip
