"""Rows of a table selected by token id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="embedding",
    doc="Row ids[t] of the table for every token t.",
    attributes={
        "vocab": Field(type="int", minimum=2, doc="number of token ids"),
        "width": Field(type="int", minimum=1, doc="length of a row"),
    },
)


def reference(ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The op in float64. ids: [T] int64; weight: [vocab, width]; returns [T, width]."""
    return weight.double()[ids]


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    vocab, width = int(attributes["vocab"]), int(attributes["width"])
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    return {"embedding": (ids, torch.empty(vocab, width, dtype=dtype, device=device))}
