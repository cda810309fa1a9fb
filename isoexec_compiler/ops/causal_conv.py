# SPDX-License-Identifier: Apache-2.0
"""Causal depthwise convolution over the last few tokens, with its activation: before the gated delta rule."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="causal_conv",
    doc="z_t = sum over j of weight[:, j] * x_(t - taps + 1 + j), x zero before the sequence; y = z / (1 + exp(-z)).",
    attributes={
        "channels": Field(type="int", minimum=1, doc="channels of the whole layer"),
        "taps": Field(type="int", minimum=2, maximum=8, doc="tokens that a result sees, its own among them"),
    },
    states=("conv_state",),
)


def reference(x: torch.Tensor, weight: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
    """The op in float64. x: [T, channels]; weight: [channels, taps]; cu_seqlens: [B + 1]; returns [T, channels]."""
    import torch

    x, weight = x.double(), weight.double()
    taps = weight.shape[1]
    outputs = [x.new_zeros(0, x.shape[1])]
    for begin, end in pairwise(cu_seqlens.tolist()):
        if begin == end:
            continue
        padded = torch.cat((x.new_zeros(taps - 1, x.shape[1]), x[begin:end]))
        outputs.append((padded.unfold(0, taps, 1) * weight).sum(-1))
    z = torch.cat(outputs)
    return z / (1 + (-z).exp())


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    channels, taps = int(attributes["channels"]), int(attributes["taps"])
    x = torch.empty(rows, channels, dtype=dtype, device=device)
    weight = torch.empty(channels, taps, dtype=dtype, device=device)
    state = torch.empty(rows + 1, taps - 1, channels, dtype=dtype, device=device)
    edges = torch.tensor([0, rows], dtype=torch.int32, device=device)
    lanes = torch.arange(1, rows + 1, dtype=torch.int32, device=device)
    return {
        "causal_conv": (x, weight, edges),
        "causal_conv_extend": (x, weight, edges, state, lanes[:1], lanes[:1]),
        "causal_conv_step": (x, weight, state, lanes, lanes),
    }
