"""Rows of a table; shards of the vocabulary on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.embedding import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`embedding` of ids over the whole table."""
    vocab, width = int(attributes["vocab"]), int(attributes["width"])
    ids, weight = draw.integers(rows, below=vocab), draw.rows(vocab, width)
    return {"embedding": Call(arguments=(ids, weight), rows=(0,), truth=lambda: (reference(ids, weight),))}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """The shards' rows joined by bits."""
    import torch

    ids, weight = arguments
    shards = weight.chunk(size)
    parts = [module.embedding(ids, shard, start=rank * len(shards[0])) for rank, shard in enumerate(shards)]
    result: torch.Tensor = module.combine(torch.stack(parts))
    return result
