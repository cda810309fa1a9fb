# SPDX-License-Identifier: Apache-2.0
"""Which process groups have peer memory: those of GPUs of one host, if every rank could set it up.

All ranks of a group ask at the same call, and the verdict is one for the group: else they would part at a branch.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from .peer_memory import PeerMemory

_FOUND: dict[dist.ProcessGroup, PeerMemory | None] = {}


def peer_memory(group: dist.ProcessGroup) -> PeerMemory | None:
    """The group's peer memory, or None if it has none. The first call is collective and cannot be in a CUDA graph."""
    if group not in _FOUND:
        if dist.get_backend(group) != "nccl" or dist.get_world_size(group) == 1:
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        _FOUND[group] = _together(group)
    return _FOUND[group]


def _together(group: dist.ProcessGroup) -> PeerMemory | None:
    from .peer_memory import PeerMemory

    hosts: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(hosts, socket.gethostname(), group=group)
    if len(set(hosts)) > 1:
        return None
    made = None
    with suppress(RuntimeError):  # these GPUs have no access to each other
        made = PeerMemory(group)
    done = torch.tensor(int(made is not None), device="cuda")
    dist.all_reduce(done, dist.ReduceOp.MIN, group=group)
    return made if done.item() else None
