"""L2 normalisation of each head row: queries and keys of the gated delta rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="l2_norm",
    doc="y = x / sqrt(sum(x^2) + eps) over the last axis.",
    attributes={
        "width": Field(type="int", minimum=1, doc="length of the normalised axis"),
        "eps": Field(type="float", minimum=0.0, doc="added to the sum of squares"),
    },
)


def reference(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    """The op in float64. x: [..., width]; returns float64 [..., width]."""
    x = x.double()
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    return {"l2_norm": (torch.empty(rows, 1, int(attributes["width"]), dtype=dtype, device=device),)}
