# SPDX-License-Identifier: Apache-2.0
"""What every launcher of a causal convolution checks and derives of its arguments; raises ValueError with one sentence.

The state of a sequence is its last taps - 1 raw inputs, the oldest first: [slots, taps - 1, channels] of the model
dtype. Nothing before a sequence's own start is read, so a slot needs no clearing. Slot 0 is the null slot.
"""

from __future__ import annotations

import torch

from .launcher import require


def check_rows(x: torch.Tensor, weight: torch.Tensor, sizes: set[int], taps: int, dtype: torch.dtype) -> None:
    """x [T, C] with C in `sizes`, weight [C, taps], both of `dtype`."""
    require(x.dim() == 2 and x.shape[1] in sizes, f"x must be [T, {max(sizes)}] or a rank's share")
    require(weight.shape == (x.shape[1], taps), f"weight must be [C, {taps}] with the C of x")
    require(x.dtype == weight.dtype == dtype, f"x and weight must be {dtype}")
    require(x.stride(1) == 1 and weight.is_contiguous(), "the last axis of x, and weight, must be contiguous")


def check_edges(cu_seqlens: torch.Tensor, tokens: int) -> None:
    """int32 [B+1]. On the CPU the values are checked too: they start at 0, never fall and end at T."""
    require(cu_seqlens.dim() == 1 and cu_seqlens.shape[0] >= 1, "cu_seqlens must be [B+1]")
    require(cu_seqlens.dtype == torch.int32 and cu_seqlens.is_contiguous(), "cu_seqlens must be contiguous torch.int32")
    if not cu_seqlens.is_cuda:
        edges = cu_seqlens.tolist()
        require(
            edges == sorted(edges) and edges[0] == 0 and edges[-1] == tokens, f"cu_seqlens must rise from 0 to {tokens}"
        )


def check_state(
    state: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor, lanes: int, channels: int, taps: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    """state [slots, taps - 1, channels] of `dtype`; slots and positions int32 [lanes]."""
    require(
        state.dim() == 3 and state.shape[1:] == (taps - 1, channels), f"state must be [slots, {taps - 1}, {channels}]"
    )
    require(state.dtype == dtype and state.stride(2) == 1, f"state must be {dtype}, its last axis contiguous")
    require(slots.shape == positions.shape == (lanes,), f"slots and positions must be [{lanes}]")
    require(slots.dtype == positions.dtype == torch.int32, "slots and positions must be torch.int32")


def lanes_of(cu_seqlens: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """For each of T rows, its sequence and its place in it, int32 [T]. No value is read on the host."""
    rows = torch.arange(tokens, dtype=torch.int32, device=cu_seqlens.device)
    lanes = torch.bucketize(rows, cu_seqlens, right=True, out_int32=True) - 1
    lanes = lanes.clamp(0, max(cu_seqlens.shape[0] - 2, 0))
    return lanes, rows - cu_seqlens[lanes]
