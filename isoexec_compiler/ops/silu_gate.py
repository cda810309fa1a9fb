"""The gated activation of the MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="silu_gate",
    doc="y = gate / (1 + exp(-gate)) * up, gate and up being the two halves of a row.",
    attributes={"width": Field(type="int", minimum=1, doc="length of a result row; a row of the input is twice that")},
)


def reference(gate_up: torch.Tensor) -> torch.Tensor:
    """The op in float64. gate_up: [T, 2 * width], gate first; returns [T, width]."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return gate / (1 + (-gate).exp()) * up


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    return {"silu_gate": (torch.empty(rows, 2 * int(attributes["width"]), dtype=dtype, device=device),)}
