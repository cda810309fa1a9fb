"""Collectives of several GPUs of one host against NCCL's: `python -m bench.parallel [--ranks 2]`.

Reductions of fp32 nodes from 64 KiB to 168 MB, in CUDA graphs. NVLink multicast stays off, on both sides.
"""

from __future__ import annotations

import argparse
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


def reductions(group: dist.ProcessGroup, collectives: ModuleType, combine: Callable) -> Iterator[harness.Row]:
    """Tree reductions through peer memory and through torch.distributed against NCCL's own, in fp32 and in bf16."""
    world = dist.get_world_size(group)
    for rows in ROWS:
        part = normal(rows, HIDDEN, seed=rows, device="cuda")
        native = part.bfloat16()
        slices = [t.new_empty(rows // world, HIDDEN) for t in (part, native)]
        size = part.numel() * 4
        name = f"{size / 2**20:g} MiB of fp32, {world} GPUs"
        share = (world - 1) / world * size / NVLINK_BYTES_PER_MS
        tree = lambda part=part: collectives.tree_all_reduce(part, group, combine)  # noqa: E731
        scatter = lambda part=part: collectives.tree_reduce_scatter(part, group, combine)  # noqa: E731
        ours, portable, fp32, bf16 = paired(
            [
                tree,
                without_peers(tree, collectives),
                lambda part=part: dist.all_reduce(part, group=group),
                lambda native=native: dist.all_reduce(native, group=group),
            ]
        )
        yield harness.row(f"all-reduce, {name}", ours, "NCCL fp32", fp32, 1.5 * share, goal(size))
        yield harness.row(f"all-reduce, {name}", ours, "NCCL bf16, other bits", bf16, 1.5 * share, "")
        yield harness.row(f"all-reduce without peer memory, {name}", portable, "NCCL fp32", fp32, 1.5 * share, "")
        ours, portable, fp32, bf16 = paired(
            [
                scatter,
                without_peers(scatter, collectives),
                lambda part=part, out=slices[0]: dist.reduce_scatter_tensor(out, part, group=group),
                lambda native=native, out=slices[1]: dist.reduce_scatter_tensor(out, native, group=group),
            ]
        )
        yield harness.row(f"reduce-scatter, {name}", ours, "NCCL fp32", fp32, share, goal(size))
        yield harness.row(f"reduce-scatter, {name}", ours, "NCCL bf16, other bits", bf16, share, "")
        yield harness.row(f"reduce-scatter without peer memory, {name}", portable, "NCCL fp32", fp32, share, "")


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
    rows = []
    for row in reductions(group, support_module("tree_collectives"), matmul.combine):
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
