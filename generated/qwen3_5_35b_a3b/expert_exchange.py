# SPDX-License-Identifier: Apache-2.0
"""Rows to the ranks that own their experts and back: one all-to-all of bytes each way, whatever a rank holds.

A rank without tokens, and a rank whose experts nobody chose, issues the same collectives as every other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Splits:
    """How many rows this rank sends to each rank of the group, and receives from each."""

    send: tuple[int, ...]
    receive: tuple[int, ...]
    group: dist.ProcessGroup

    def reverse(self) -> Splits:
        """The way back."""
        return Splits(send=self.receive, receive=self.send, group=self.group)


def splits(offsets: torch.Tensor, group: dist.ProcessGroup) -> Splits:
    """Rows in expert order, cut at the experts of each rank. offsets: int32 [E + 1], the first row of every expert.

    Rank r owns the experts [r * E / W, (r + 1) * E / W). Waits for the device: the sizes of an all-to-all are host
    integers. Raises ValueError if the ranks cannot share the experts equally.
    """
    world, experts = dist.get_world_size(group), offsets.numel() - 1
    if experts % world:
        raise ValueError(f"{experts} experts cannot be shared equally by {world} ranks")
    send = offsets[:: experts // world].diff()
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    return Splits(send=tuple(send.tolist()), receive=tuple(receive.tolist()), group=group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, way: Splits) -> torch.Tensor:
        ctx.way = way
        received = rows.new_empty((sum(way.receive), *rows.shape[1:]))
        dist.all_to_all_single(
            received.flatten(1).view(torch.uint8),
            rows.contiguous().flatten(1).view(torch.uint8),
            list(way.receive),
            list(way.send),
            group=way.group,
        )
        return received

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Exchange.apply(grad, ctx.way.reverse()), None


def exchange(rows: torch.Tensor, way: Splits) -> torch.Tensor:
    """Every rank's rows for this rank, by ascending rank.

    rows: [sum(send), n], sorted by receiving rank. Returns [sum(receive), n]. Differentiable: the
    gradient takes the way back.
    """
    return _Exchange.apply(rows, way)
