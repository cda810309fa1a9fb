"""Short depth-wise causal convolution with SiLU, ahead of the gated delta rule."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="causal_conv",
    doc="y_t = silu(sum_j weight_j x_{t-3+j} + bias) per channel, rows before the sequence's first being zero.",
    attributes={
        "channels": Field(type="int", minimum=1, doc="channels, each with a filter of its own"),
        "width": Field(type="int", choices=(4,), doc="taps"),
        "bias": Field(type="bool", doc="whether a bias is added after the taps"),
    },
    states=("conv_state",),
)


def reference(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cu_seqlens: torch.Tensor
) -> torch.Tensor:
    """The op in float64. x: [T, C]; weight: [C, 4]; bias: [C] or None; cu_seqlens: [B + 1]; returns [T, C]."""
    import torch

    parts = []
    for begin, end in pairwise(cu_seqlens.tolist()):
        if begin == end:
            continue
        rows = torch.nn.functional.pad(x[begin:end].double().T, (weight.shape[1] - 1, 0))
        taps = (rows.unfold(1, weight.shape[1], 1) * weight.double()[:, None, :]).sum(-1).T
        parts.append(taps if bias is None else taps + bias.double())
    return torch.nn.functional.silu(torch.cat(parts)) if parts else torch.zeros_like(x, dtype=torch.float64)


def example(
    attributes: Values, dtype: torch.dtype, rows: int, device: str
) -> dict[str, tuple[torch.Tensor | None, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    channels = int(attributes["channels"])
    x = torch.empty(rows, channels, dtype=dtype, device=device)
    weight = torch.empty(channels, int(attributes["width"]), dtype=dtype, device=device)
    bias = torch.empty(channels, dtype=dtype, device=device) if attributes["bias"] else None
    starts = torch.tensor([0, rows], dtype=torch.int32, device=device)
    slots = torch.zeros(rows, dtype=torch.int32, device=device)
    state = torch.empty(2, 3, channels, dtype=dtype, device=device)
    return {"causal_conv": (x, weight, bias, starts), "causal_conv_step": (x, weight, bias, state, slots, slots)}
