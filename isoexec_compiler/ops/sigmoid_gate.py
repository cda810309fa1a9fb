"""The gate on the output of attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="sigmoid_gate",
    doc="y = x / (1 + exp(-gate)), elementwise.",
    attributes={"width": Field(type="int", minimum=1, doc="length of a row")},
)


def reference(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The op in float64. x, gate: [T, width]; returns [T, width]."""
    return x.double() / (1 + (-gate.double()).exp())


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    x, gate = (torch.empty(rows, int(attributes["width"]), dtype=dtype, device=device) for _ in range(2))
    return {"sigmoid_gate": (x, gate)}
