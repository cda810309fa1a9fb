"""Heads turned by their position; heads on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.rotary import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch

HEADS = 8


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`rotary` of eight heads at positions over the whole table, its first and last among them."""
    dim, length = int(attributes["head_dim"]), int(attributes["max_positions"])
    x = draw.rows(rows, HEADS * dim).view(rows, HEADS, dim)
    positions = draw.integers(rows, below=length)
    positions[:1], positions[-1:] = 0, length - 1
    rotary_dim, theta = int(attributes["rotary_dim"]), float(attributes["theta"])
    return {
        "rotary": Call(
            arguments=(x, positions),
            rows=(0, 1),
            truth=lambda: (reference(x, positions, rotary_dim=rotary_dim, theta=theta),),
        )
    }


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank turns its heads."""
    import torch

    x, positions = arguments
    return torch.cat([module.rotary(heads, positions) for heads in x.chunk(size, 1)], 1)
