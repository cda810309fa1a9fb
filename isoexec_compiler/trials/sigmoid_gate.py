"""Gated rows; their columns on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.sigmoid_gate import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`sigmoid_gate`."""
    width = int(attributes["width"])
    x, gate = draw.rows(rows, width), draw.rows(rows, width)
    return {"sigmoid_gate": Call(arguments=(x, gate), rows=(0, 1), truth=lambda: (reference(x, gate),))}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its columns of both."""
    import torch

    x, gate = arguments
    ranks = zip(x.chunk(size, 1), gate.chunk(size, 1), strict=True)
    return torch.cat([module.sigmoid_gate(*(part.contiguous() for part in pair)) for pair in ranks], 1)
