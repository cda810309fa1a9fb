"""RMS normalisation of each head row, times a gate: the output of the gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="gated_rms_norm",
    doc="y = x / sqrt(mean(x^2) + eps) * weight * gate / (1 + exp(-gate)) over the last axis; norm first, then gate.",
    attributes={
        "width": Field(type="int", minimum=1, doc="length of the normalised axis"),
        "eps": Field(type="float", minimum=0.0, doc="added to the mean of squares"),
    },
)


def reference(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The op in float64. x, gate: [..., width]; weight: [width]; returns float64 [..., width]."""
    x, gate, weight = x.double(), gate.double(), weight.double()
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight * gate / (1 + (-gate).exp())


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    width = int(attributes["width"])
    x, gate = (torch.empty(rows, 1, width, dtype=dtype, device=device) for _ in range(2))
    return {"gated_rms_norm": (x, gate, torch.empty(width, dtype=dtype, device=device))}
