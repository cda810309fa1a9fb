# SPDX-License-Identifier: Apache-2.0
"""Weights under the names of the checkpoint, wherever their rows and columns lie: copied, fingerprinted, compared.

An adapter lists the pieces that its rank holds; everything else follows from the pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .bits import fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A view of `tensor` into this rank's memory that is rows `row..` and columns `column..` of the tensor `name` of
    the whole `shape`. One-dimensional tensors are one row."""

    name: str
    shape: tuple[int, ...]
    tensor: torch.Tensor
    row: int = 0
    column: int = 0


def whole(name: str, tensor: torch.Tensor) -> Piece:
    """A tensor that every rank holds in full."""
    return Piece(name=name, shape=tuple(tensor.shape), tensor=tensor)


def rows(name: str, tensor: torch.Tensor, total: int, row: int) -> Piece:
    """Rows `row..` of a tensor of `total` rows."""
    return Piece(name=name, shape=(total, *tensor.shape[1:]), tensor=tensor, row=row)


def columns(name: str, tensor: torch.Tensor, rank: int, world: int) -> Piece:
    """The columns of `rank` of a matrix, or the numbers of `rank` of a vector, cut evenly over `world` ranks."""
    *outer, size = tensor.shape
    return Piece(name=name, shape=(*outer, size * world), tensor=tensor, column=rank * size)


def place(piece: Piece, tensor: torch.Tensor) -> torch.Tensor:
    """The part of the whole tensor that the piece is a copy of, a view."""
    if tensor.dim() == 1:
        return tensor[piece.column : piece.column + len(piece.tensor)]
    rows = tensor[piece.row : piece.row + piece.tensor.shape[0]]
    return rows[:, piece.column : piece.column + piece.tensor.shape[1]]


@torch.no_grad()
def load(pieces: Iterable[Piece], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy each piece from whole tensors, in place, so that captured graphs keep their pointers.

    Raises ValueError, before anything is copied, when names, shapes or dtypes do not agree: no cast is made.
    """
    pieces = list(pieces)
    names = {piece.name for piece in pieces}
    problems = [f"{name} is missing" for name in sorted(names - tensors.keys())]
    problems += [f"{name} is not a weight of this model" for name in sorted(tensors.keys() - names)]
    for piece in pieces:
        source = tensors.get(piece.name)
        if source is not None and (tuple(source.shape), source.dtype) != (piece.shape, piece.tensor.dtype):
            problems.append(
                f"{piece.name} is {source.dtype} {tuple(source.shape)}, not {piece.tensor.dtype} {piece.shape}"
            )
    if problems:
        raise ValueError("; ".join(sorted(set(problems))))
    for piece in pieces:
        piece.tensor.copy_(place(piece, tensors[piece.name]))


def fingerprints(pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """What this rank holds, as JSON-ready data: place, size, dtype and fingerprint of every piece."""
    return [
        {
            "name": piece.name,
            "shape": list(piece.shape),
            "dtype": str(piece.tensor.dtype).removeprefix("torch."),
            "place": [piece.row, piece.column],
            "size": list(piece.tensor.shape),
            "digest": f"{fingerprint(piece.tensor, piece.row, piece.column):016x}",
        }
        for piece in pieces
        if piece.tensor.numel()
    ]


def merge(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Fingerprints of whole tensors from those of all ranks' pieces: {name: shape, dtype, digest}.

    Raises ValueError when copies of one piece differ between ranks or pieces do not cover a tensor.
    """
    seen: dict[tuple[str, int, int], Mapping[str, Any]] = {}
    for rank, pieces in enumerate(ranks):
        for piece in pieces:
            first = seen.setdefault((piece["name"], *piece["place"]), piece)
            if first != piece:
                raise ValueError(f"rank {rank} holds another copy of {piece['name']} than the ranks before it")
    tensors: dict[str, dict[str, Any]] = {}
    covered: dict[str, int] = {}
    for (name, _, _), piece in sorted(seen.items()):
        tensor = tensors.setdefault(name, {"shape": piece["shape"], "dtype": piece["dtype"], "digest": 0})
        tensor["digest"] = (tensor["digest"] + int(piece["digest"], 16)) % (1 << 64)
        covered[name] = covered.get(name, 0) + torch.Size(piece["size"]).numel()
    for name, tensor in tensors.items():
        if covered[name] != torch.Size(tensor["shape"]).numel():
            raise ValueError(f"the ranks' pieces of {name} do not add up to {tuple(tensor['shape'])}")
        tensor["digest"] = f"{tensor['digest']:016x}"
    return tensors


def disagreements(ours: Mapping[str, Mapping[str, Any]], theirs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sentences on tensors that two sides do not hold alike."""
    problems = [f"{name} is missing on one side" for name in sorted(ours.keys() ^ theirs.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        for fact in ("shape", "dtype", "digest"):
            if ours[name][fact] != theirs[name][fact]:
                problems.append(f"{name}: {fact} {ours[name][fact]} against {theirs[name][fact]}")
                break
    return problems
