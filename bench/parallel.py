"""Collectives and MoE layouts on several GPUs of one host: `python -m bench.parallel [--ranks 2] [--quick]`.

First the bits: reductions on both sides of the threshold, expert and tensor parallelism, sequence scattered or not,
each against one GPU. Then times against NCCL's own reductions, in CUDA graphs. NVLink multicast stays off.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from types import ModuleType

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from bench import harness
from tests.laws.moe_layer import LARGE, Moe, share
from tests.support.bits import assert_same_bits, differing
from tests.support.inputs import normal
from tests.support.rendering import render_kernel
from tests.support.support_modules import support_module

HIDDEN = 2048
NVLINK_BYTES_PER_MS = 4.5e8
# fp32 parts of 64 KiB, 256 KiB, 1, 8, 64 and 168 MB.
ROWS = (8, 32, 128, 1024, 8192, 20480)
REPEATS = 10


def timed(function: Callable[[], object], rounds: int = 15) -> float:
    """Median milliseconds of one call out of a graph of several; every rank runs the same number."""
    replay = harness.graph(function, REPEATS)
    found = []
    for _ in range(rounds):
        dist.barrier()
        found.append(harness.once(replay) / REPEATS)
    return sorted(found)[rounds // 2]


def check_reductions(group: dist.ProcessGroup, modules: dict[str, ModuleType], peer: Callable) -> None:
    """Every path, at every size and between, gives the bits of one GPU."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    collectives, combine = modules["tree_collectives"], modules["matmul"].combine
    for rows in sorted({*ROWS, 1, 3, 255, 256, 257, 509, 2600}):
        parts = normal(world, rows, HIDDEN, seed=rows, device="cuda")
        root = combine(parts)
        assert_same_bits(collectives.tree_sum(parts).bfloat16(), root, "kernel and torch")
        assert_same_bits(collectives.tree_all_reduce(parts[rank], group, combine), root, f"all-reduce, {rows} rows")
        if rows % world == 0:
            mine = slice(rank * rows // world, (rank + 1) * rows // world)
            assert_same_bits(collectives.tree_reduce_scatter(parts[rank], group, combine), root[mine], f"{rows} rows")
        if rows <= 128:
            for _ in range(5):
                assert_same_bits(peer(parts[rank], torch.bfloat16), root, f"peer memory, {rows} rows")
        rotated = collectives.tree_all_reduce(parts[(rank + 1) % world], group)
        assert (differing(rotated, collectives.tree_sum(parts)) > 0) == (world > 2), "control: rotated ranks"


def check_experts(group: dist.ProcessGroup, modules: dict[str, ModuleType]) -> None:
    """Owners and shares of the experts, and the scattered sequence, against all experts on one GPU."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    experts, moe = modules["routed_experts"], modules["moe"]
    functions = experts.Kernels(
        dispatch=moe.router.dispatch,
        gate_up=moe.gate_up.expert_gate_up,
        act=moe.act.expert_act,
        down=moe.down.expert_down,
        expert_combine=moe.combine.expert_combine,
        combine=moe.combine.combine,
    )
    owned = slice(rank * LARGE.experts // world, (rank + 1) * LARGE.experts // world)
    for rows in (0, 1, world - 1, world + 1, 2 * world + 1, 64, 509):
        x = moe.tokens(rows, seed=rows)
        chosen, weights = moe.router.router(x, moe.router_weight)
        whole = experts.routed_experts(x, chosen, weights, moe.gate_up_weight, moe.down_weight, functions)
        shared = experts.experts_by_width(x, chosen, weights, *share(moe, rank, world), functions, group)
        assert_same_bits(shared, whole, f"TP{world}, {rows} tokens")
        if rows % world == 0:
            part = experts.experts_by_width(x, chosen, weights, *share(moe, rank, world), functions, group, True)
            mine = slice(rank * rows // world, (rank + 1) * rows // world)
            assert_same_bits(part, whole[mine], f"TP{world} and SP, {rows} tokens")
        own = slice(rank, None, world)
        inputs = (t[own].contiguous() for t in (x, chosen, weights))
        by_owner = experts.experts_by_owner(
            *inputs, moe.gate_up_weight[owned], moe.down_weight[owned], functions, group
        )
        assert_same_bits(by_owner, whole[own], f"EP{world}, {rows} tokens")


def reductions(group: dist.ProcessGroup, modules: dict[str, ModuleType], peer: Callable) -> Iterator[harness.Row]:
    """Times of the tree reductions and NCCL's, same payload and the native one."""
    world = dist.get_world_size(group)
    collectives, combine = modules["tree_collectives"], modules["matmul"].combine
    for rows in ROWS:
        part = normal(rows, HIDDEN, seed=rows, device="cuda")
        native, slice_of = part.bfloat16(), torch.empty(rows // world, HIDDEN, device="cuda")
        size = part.numel() * 4
        floor = (world - 1) / world * size * 1.5 / NVLINK_BYTES_PER_MS
        name = f"{size / 2**20:g} MiB, {world} GPUs"
        goal = "<= 1.0" if size < 256 << 10 else "<= 1.1" if size >= 8 << 20 else ""
        tree = timed(lambda part=part: collectives.tree_all_reduce(part, group, combine))
        fp32 = timed(lambda part=part: dist.all_reduce(part, group=group))
        bf16 = timed(lambda native=native: dist.all_reduce(native, group=group))
        yield harness.row(f"all-reduce {name}", tree, "NCCL fp32", fp32, floor, goal)
        yield harness.row(f"all-reduce {name}", tree, "NCCL bf16, half the bytes, other bits", bf16, floor, "")
        if rows <= 128:
            ours = timed(lambda part=part: peer(part, torch.bfloat16))
            yield harness.row(f"all-reduce, peer memory {name}", ours, "NCCL fp32", fp32, floor, goal)
            yield harness.row(
                f"all-reduce, peer memory {name}", ours, "NCCL bf16, half the bytes, other bits", bf16, floor, ""
            )
        scatter = timed(lambda part=part: collectives.tree_reduce_scatter(part, group, combine))
        theirs = timed(lambda out=slice_of, part=part: dist.reduce_scatter_tensor(out, part, group=group))
        yield harness.row(f"reduce-scatter {name}", scatter, "NCCL fp32", theirs, floor / 1.5, goal)


def on_rank(rank: int, world: int, store: str, quick: bool) -> None:
    """One process: bits, then times; rank 0 writes the table."""
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=world, device_id=torch.device("cuda", rank)
    )
    group = dist.group.WORLD
    moe = Moe("sm90")
    matmul = render_kernel("matmul_tree", "sm90", {"n": HIDDEN, "k": 4096, "split": "rows", "out": "model"})
    modules = {name: support_module(name) for name in ("tree_collectives", "routed_experts", "peer_tree")}
    modules |= {"moe": moe, "matmul": matmul}
    peer = modules["peer_tree"].PeerTree(group, 128 * HIDDEN)
    check_reductions(group, modules, peer)
    check_experts(group, modules)
    if rank == 0:
        print(f"every layout of {world} GPUs has the bits of one", flush=True)
    rows = [] if quick else list(reductions(group, modules, peer))
    if rank == 0 and rows:
        harness.save(f"parallel_h200_x{world}", rows)
    dist.barrier()
    torch.cuda.synchronize()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="only the bits")
    arguments = parser.parse_args()
    os.environ |= {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    with tempfile.TemporaryDirectory() as folder:
        values = (arguments.ranks, f"{folder}/store", arguments.quick)
        multiprocessing.start_processes(on_rank, values, nprocs=arguments.ranks, start_method="spawn")


if __name__ == "__main__":
    main()
