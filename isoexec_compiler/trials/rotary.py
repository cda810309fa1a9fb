"""Heads of queries and of keys turned by their position; heads on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.rotary import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch

Q_HEADS, K_HEADS = 16, 8


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`rotary` of q and k, views of one matrix, at positions over the whole table, its first and last among them."""
    dim, length = int(attributes["head_dim"]), int(attributes["max_positions"])
    heads = draw.rows(rows, (Q_HEADS + K_HEADS) * dim).view(rows, Q_HEADS + K_HEADS, dim)
    q, k = heads.split((Q_HEADS, K_HEADS), 1)
    positions = draw.integers(rows, below=length)
    positions[:1], positions[-1:] = 0, length - 1
    rotary_dim, theta = int(attributes["rotary_dim"]), float(attributes["theta"])
    return {
        "rotary": Call(
            arguments=(q, k, positions),
            rows=(0, 1, 2),
            truth=lambda: reference(q, k, positions, rotary_dim=rotary_dim, theta=theta),
        )
    }


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> tuple[torch.Tensor, ...]:
    """Each rank turns its heads of q and its heads of k."""
    import torch

    q, k, positions = arguments
    shares = zip(q.chunk(size, 1), k.chunk(size, 1), strict=True)
    turned = [module.rotary(*heads, positions) for heads in shares]
    return tuple(torch.cat(parts, 1) for parts in zip(*turned, strict=True))
