"""Root-mean-square normalisation of each row, optionally after adding a residual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="rms_norm",
    doc="y = x / sqrt(mean(x^2) + eps) * gamma over the last axis; gamma is the weight, or one plus the weight.",
    attributes={
        "width": Field(type="int", minimum=1, doc="length of the normalised axis"),
        "eps": Field(type="float", minimum=0.0, doc="added to the mean of squares"),
        "gamma": Field(type="enum", choices=("plain", "one_plus"), doc="weight as stored, or 1 + weight"),
    },
)


def reference(x: torch.Tensor, weight: torch.Tensor, *, eps: float, gamma: str) -> torch.Tensor:
    """The op in float64. x: [..., width]; weight: [width]; returns float64 [..., width]."""
    x, weight = x.double(), weight.double()
    scale = 1 + weight if gamma == "one_plus" else weight
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * scale


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    width = int(attributes["width"])
    x, residual = (torch.empty(rows, width, dtype=dtype, device=device) for _ in range(2))
    weight = torch.empty(width, dtype=dtype, device=device)
    return {"rms_norm": (x, weight), "add_rms_norm": (x, residual, weight)}
