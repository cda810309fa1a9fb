"""The routed experts' sum and the shared expert, added."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="shared_combine",
    doc="routed + shared * gate.",
    attributes={"hidden": Field(type="int", minimum=1, doc="width of a token")},
)


def reference(routed: torch.Tensor, shared: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """The op in float64. routed, shared: [T, hidden]; gate: [T]; returns [T, hidden]."""
    return routed.double() + shared.double() * gate.double()[:, None]


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    routed, shared = (torch.empty(rows, int(attributes["hidden"]), dtype=dtype, device=device) for _ in range(2))
    return {"shared_combine": (routed, shared, torch.empty(rows, device=device))}
