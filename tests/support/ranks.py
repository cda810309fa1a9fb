"""Real gloo processes, forked from this one: one call runs a function on every rank of a group."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def _rank(rank: int, world: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        function(dist.group.WORLD, *arguments)
    finally:
        dist.destroy_process_group()


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Run `function(group, *arguments)` on `world` processes; raises with the first failing rank's traceback."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _rank, (world, f"{folder}/store", function, arguments), nprocs=world, start_method="fork"
        )
