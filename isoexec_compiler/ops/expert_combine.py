"""The sum of a token's expert rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="expert_combine",
    doc="The sum of a token's top_k rows; weighted: each times the router's weight.",
    attributes={
        "hidden": Field(type="int", minimum=1, doc="width of a token"),
        "top_k": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
        "weighted": Field(type="bool", doc="the router's weight is applied here, and not in expert_act"),
    },
)


def reference(rows: torch.Tensor, weights: torch.Tensor, *, weighted: bool) -> torch.Tensor:
    """The op in float64. rows: [T, top_k, hidden]; weights: [T, top_k]; returns [T, hidden]."""
    return (rows.double() * weights.double()[..., None] if weighted else rows.double()).sum(1)


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    hidden, top_k = int(attributes["hidden"]), int(attributes["top_k"])
    one, two = (torch.empty(n, rows, top_k, hidden, device=device) for n in (1, 2))
    weights = torch.empty(rows, top_k, device=device)
    return {"expert_combine": (one[0], weights), "combine": (two, weights)}
