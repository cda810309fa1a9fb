"""Addition to the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="residual_add",
    doc="y = x + residual.",
    attributes={"width": Field(type="int", minimum=1, doc="length of a row")},
)


def reference(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """The op in float64. x, residual: [T, width]; returns [T, width]."""
    return x.double() + residual.double()


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    shape = rows, int(attributes["width"])
    x, residual = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
    return {"residual_add": (x, residual)}
