"""Collectives of several GPUs of one host against NCCL's: `python -m bench.parallel [--ranks 2]`.

Reductions of fp32 nodes from 64 KiB to 168 MB, in CUDA graphs. NVLink multicast stays off, on both sides.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import torch
import torch.distributed as dist

from bench import harness
from bench.gpus import on_gpus
from tests.support.inputs import normal
from tests.support.rendering import render_kernel
from tests.support.support_modules import support_module

HIDDEN = 2048
NVLINK_BYTES_PER_MS = 4.5e8
# Nodes of 64, 128, 256, 512 KiB, 1, 2, 4, 8, 16, 64 MiB and 168 MB.
ROWS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192, 20480)
REPEATS = 20
PAUSE = 1_000_000  # cycles: longer than a host needs to launch what it measures


def paired(functions: Sequence[Callable[[], object]], rounds: int = 15) -> list[float]:
    """Median milliseconds of each function, run in turn, the slowest rank's.

    A graph holds several calls. Before each run the ranks meet on the device and pause there until the hosts have
    launched the run: otherwise the time at which the other rank's host arrives is measured, some 0.3 ms.
    """
    replays = [harness.graph(function, REPEATS) for function in functions]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    meeting = torch.zeros(1, device="cuda")
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for replay, times in zip(replays, found, strict=True):
            dist.all_reduce(meeting)
            torch.cuda._sleep(PAUSE)
            start.record()
            replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / REPEATS)
    slowest = torch.tensor([statistics.median(times) for times in found], device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def goal(size: int) -> str:
    return "<= 1.0" if size <= 256 << 10 else "<= 1.1" if size >= 8 << 20 else ""


def reductions(group: dist.ProcessGroup, modules: dict[str, ModuleType], combine: Callable) -> Iterator[harness.Row]:
    """Tree reductions through peer memory and through torch.distributed against NCCL's own, in fp32 and in bf16."""
    world, collectives = dist.get_world_size(group), modules["tree_collectives"]
    others = (world - 1) / world
    for rows in ROWS:
        part = normal(rows, HIDDEN, seed=rows, device="cuda")
        native = part.bfloat16()
        slices = [t.new_empty(rows // world, HIDDEN) for t in (part, native)]
        size = part.numel() * 4
        limit = modules["peer_memory"].ONE_SHOT_BYTES
        gathered = 2 * (world - 1) if 2 * (world - 1) * size <= limit else 1.5 * others
        scattered = 2 * others if 2 * others * size <= limit else others
        tree = lambda part=part: collectives.tree_all_reduce(part, group, combine)  # noqa: E731
        scatter = lambda part=part: collectives.tree_reduce_scatter(part, group, combine)  # noqa: E731
        # What is reduced, ours, NCCL in fp32 and in bf16, and the parts of the message that a rank receives in each.
        for kind, ours, fp32, bf16, received in (
            (
                "all-reduce",
                tree,
                lambda part=part: dist.all_reduce(part, group=group),
                lambda native=native: dist.all_reduce(native, group=group),
                (gathered, 2 * others, others),
            ),
            (
                "reduce-scatter",
                scatter,
                lambda part=part, out=slices[0]: dist.reduce_scatter_tensor(out, part, group=group),
                lambda native=native, out=slices[1]: dist.reduce_scatter_tensor(out, native, group=group),
                (scattered, others, others / 2),
            ),
        ):
            times = paired([ours, fp32, bf16, without_peers(ours, collectives)])
            mib = [f"{share * size / 2**20:.3g} MiB received" for share in received]
            name = f"{kind}, {size / 2**20:g} MiB of fp32, {world} GPUs"
            floor = (1.5 if kind == "all-reduce" else 1) * others * size / NVLINK_BYTES_PER_MS
            ms, *peers, portable = times
            yield harness.row(f"{name} ({mib[0]})", ms, f"NCCL fp32 ({mib[1]})", peers[0], floor, goal(size))
            yield harness.row(f"{name} ({mib[0]})", ms, f"NCCL bf16, other bits ({mib[2]})", peers[1], floor, "")
            yield harness.row(f"without peer memory: {name}", portable, "NCCL fp32", peers[0], floor, "")


def without_peers(function: Callable[[], object], collectives: ModuleType) -> Callable[[], object]:
    """`function` through torch.distributed alone."""

    def call() -> object:
        found, collectives.peer_memory = collectives.peer_memory, lambda group: None
        try:
            return function()
        finally:
            collectives.peer_memory = found

    return call


def on_rank(group: dist.ProcessGroup) -> None:
    """One process: times; rank 0 writes the table."""
    matmul = render_kernel("matmul_tree", "sm90", {"n": HIDDEN, "k": 4096, "split": "rows", "out": "model"})
    collectives = support_module("tree_collectives")
    peers = importlib.import_module(f"{collectives.__package__}.peer_memory")
    modules = {"tree_collectives": collectives, "peer_memory": peers}
    rows = []
    for row in reductions(group, modules, matmul.combine):
        rows.append(row)
        if dist.get_rank(group) == 0:
            print(row["name"], row["ours_ms"], row["peer"], row["peer_ms"], row["ratio"], flush=True)
    if dist.get_rank(group) == 0:
        harness.save(f"parallel_h200_x{dist.get_world_size(group)}", rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    on_gpus(parser.parse_args().ranks, on_rank)


if __name__ == "__main__":
    main()
