"""The gate of the shared expert: one number a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="shared_gate",
    doc="sigmoid(x . w), in fp32.",
    attributes={"hidden": Field(type="int", minimum=1, doc="width of a token")},
)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The op in float64. x: [T, hidden]; weight: [1, hidden]; returns [T]."""
    return (x.double() @ weight.double()[0]).sigmoid()


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    hidden = int(attributes["hidden"])
    return {"shared_gate": tuple(torch.empty(n, hidden, dtype=dtype, device=device) for n in (rows, 1))}
