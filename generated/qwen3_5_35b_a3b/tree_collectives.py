# SPDX-License-Identifier: Apache-2.0
"""Collectives of a process group in which the network only moves bytes and the arithmetic is ours.

A rank's `part` is a node of a reduction tree (fp32), or bits to be selected. `combine(parts[W, T, ...]) -> [T, ...]`
evaluates the levels above the ranks, pairwise by ascending rank, and rounds if the region rounds; it acts on each row
of the second axis alone. Whether every rank combines all rows (one shot) or each rank its own rows (two shots)
therefore moves no bit, nor does the algorithm, channel or protocol that NCCL or gloo chooses for a size, nor whether
the bytes go through peer memory or through torch.distributed.

Every branch is a function of the shape, the dtype and the group size, which all ranks share.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from .peer_groups import peer_memory

Combine = Callable[[torch.Tensor], torch.Tensor]

# Bytes that a rank may receive in one shot beyond those of two; more of them cost more than a shot. Moves no bit.
EXTRA_BYTES = 2 << 20


def tree_sum(parts: torch.Tensor) -> torch.Tensor:
    """The balanced tree over the first axis: adjacent pairs, a left-over joins at the next level; fp32, not rounded.

    parts: [W, ...] float32 by ascending rank. Returns float32 [...]. Raises ValueError on another dtype.
    """
    if parts.dtype != torch.float32:
        raise ValueError(f"a tree is summed in float32, not {parts.dtype}")
    nodes = list(parts.unbind(0))
    while len(nodes) > 1:
        pairs = [nodes[i] + nodes[i + 1] for i in range(0, len(nodes) - 1, 2)]
        nodes = pairs + nodes[len(pairs) * 2 :]
    return nodes[0]


def bits_or(parts: torch.Tensor) -> torch.Tensor:
    """The union of the ranks' bits where all but one rank hold +0: a selection that keeps -0.0, unlike a sum.

    parts: [W, ...] float32 or bfloat16. Returns the same dtype, [...].
    """
    bits = parts.view(torch.int32 if parts.element_size() == 4 else torch.int16)
    union = bits[0]
    for rank in range(1, parts.shape[0]):
        union = union | bits[rank]
    return union.view(parts.dtype)


def gather_parts(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Every rank's tensor, stacked by ascending rank. part: [...] of one shape on all ranks. Returns [W, ...]."""
    peers = peer_memory(group)
    if peers is not None and peers.fits(part):
        return peers.gather(part)
    world = dist.get_world_size(group)
    parts = part.new_empty((world, *part.shape))
    if part.numel():
        dist.all_gather_into_tensor(as_bytes(parts), as_bytes(part.contiguous()), group=group)
    return parts


def gather_rows(rows: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The rows of all ranks by ascending rank. rows: [t, ...] of one shape on all ranks. Returns [W * t, ...]."""
    return gather_parts(rows, group).flatten(0, 1)


def scatter_parts(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Every rank's tensor for this rank's slice of the rows. part: [T, ...], W divides T. Returns [W, T / W, ...].

    Raises ValueError if the group size does not divide the rows.
    """
    world = dist.get_world_size(group)
    if part.shape[0] % world:
        raise ValueError(f"{part.shape[0]} rows cannot be shared equally by {world} ranks: pad them first")
    parts = part.new_empty((world, part.shape[0] // world, *part.shape[1:]))
    if part.numel():
        dist.all_to_all_single(as_bytes(parts), as_bytes(part.contiguous()), group=group)
    return parts


def tree_all_reduce(part: torch.Tensor, group: dist.ProcessGroup, combine: Combine = tree_sum) -> torch.Tensor:
    """The combined rows on every rank, any number of rows. part: [T, ...]. Returns `combine`'s [T, ...].

    One shot: gather the parts and combine. Two shots: exchange slices of the rows, combine the own slice, gather the
    results, which `combine` may already have rounded.
    """
    peers = peer_memory(group)
    if peers is not None and peers.fits(part, shared=True):
        return peers.all_reduce(part, combine)
    world, rows = dist.get_world_size(group), part.shape[0]
    if extra_bytes(part.numel() * part.element_size(), world) <= EXTRA_BYTES:
        return combine(gather_parts(part, group))
    padded = torch.cat((part, part.new_zeros(-rows % world, *part.shape[1:]))) if rows % world else part
    return gather_rows(combined_slice(scatter_parts(padded, group), rows, dist.get_rank(group), combine), group)[:rows]


def extra_bytes(part: int, world: int) -> int:
    """How many bytes more a rank receives in one shot than in two, of whole parts than of slices of parts and results.

    part: bytes of a rank's part. Results are taken to be half as wide.
    """
    return part * (world - 1) * (2 * world - 3) // (2 * world)


def combined_slice(parts: torch.Tensor, rows: int, rank: int, combine: Combine) -> torch.Tensor:
    """`combine` of a rank's slice of `rows` rows. parts: [W, t, ...] with t = rows / W rounded up. Returns [t, ...].

    Rows beyond the last are not combined, so that no region sees a row that the model does not have; they come out as
    zeros.
    """
    share = parts.shape[1]
    held = min(max(rows - rank * share, 0), share)
    if held == share:
        return combine(parts)
    found = combine(parts[:, :held].contiguous())
    return torch.cat((found, found.new_zeros(share - held, *found.shape[1:])))


def tree_reduce_scatter(part: torch.Tensor, group: dist.ProcessGroup, combine: Combine = tree_sum) -> torch.Tensor:
    """This rank's rows of `tree_all_reduce`, bit for bit, at every size. part: [T, ...]. Returns [T / W, ...].

    Raises ValueError if the group size does not divide the rows.
    """
    peers = peer_memory(group)
    if peers is not None and part.shape[0] % peers.ranks == 0 and peers.fits(part, shared=True):
        return peers.reduce_scatter(part, combine)
    return combine(scatter_parts(part, group))


def vocab_max(row_max: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The largest logit of each row over the vocabulary shards; exact. row_max: [T] float32. Returns [T]."""
    return gather_parts(row_max, group).amax(0)


def vocab_sums(sums: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """All leaf sums of each row by ascending leaf. sums: [T, leaves / W] float32. Returns [T, leaves]."""
    return gather_parts(sums, group).movedim(0, 1).flatten(1)


def vocab_target(logit: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The target's logit of each row, from the one shard that holds it. logit: [T], +0 elsewhere. Returns [T]."""
    return bits_or(gather_parts(logit, group))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor as the bytes that travel: [numel * element size] uint8, sharing its memory."""
    return tensor.view(-1).view(torch.uint8)
