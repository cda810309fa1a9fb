"""One process for each GPU of this host, in one NCCL group."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def _rank(rank: int, world: int, store: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.cuda.set_device(rank)
    device = torch.device("cuda", rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world, device_id=device)
    function(dist.group.WORLD, *arguments)
    dist.barrier()
    torch.cuda.synchronize()
    sys.stdout.flush()
    os._exit(0)  # without a teardown: groups that a framework made can wait in theirs for peers that are gone


def on_gpus(world: int, function: Callable[..., Any], *arguments: Any) -> None:
    """Run `function(group, *arguments)` on `world` GPUs, without NVLink multicast; raises the first error."""
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    with tempfile.TemporaryDirectory() as folder:
        values = (world, f"{folder}/store", function, arguments)
        multiprocessing.start_processes(_rank, values, nprocs=world, start_method="spawn")
