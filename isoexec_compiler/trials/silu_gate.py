"""Gated activations; columns of gate and up on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.silu_gate import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`silu_gate`."""
    gate_up = draw.rows(rows, 2 * int(attributes["width"]))
    return {"silu_gate": Call(arguments=(gate_up,), rows=(0,), truth=lambda: (reference(gate_up),))}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its columns of gate and of up."""
    import torch

    gate, up = arguments[0].chunk(2, 1)
    ranks = zip(gate.chunk(size, 1), up.chunk(size, 1), strict=True)
    return torch.cat([module.silu_gate(torch.cat(pair, 1)) for pair in ranks], 1)
