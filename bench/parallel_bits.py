"""Layouts of several GPUs of one host have the bits of one: `python -m bench.parallel_bits [--ranks 2]`.

Reductions on both sides of every threshold, through peer memory and without it; experts owned and shared, the sequence
scattered or not. Counts of differing values, and of the values; a rotated order of ranks as the control.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from unittest import mock

import torch
import torch.distributed as dist

from bench import harness
from bench.gpus import on_gpus
from bench.parallel import HIDDEN, ROWS, without_peers
from tests.laws import moe_layer
from tests.laws.moe_layer import LARGE, Moe, share
from tests.support.ahead import compile_ahead
from tests.support.bits import differing
from tests.support.rendering import render_kernel
from tests.support.support_modules import support_module

# Sizes between those that are timed, on the other side of each threshold of two GPUs, and rows that no group divides.
BETWEEN = (1, 3, 65, 130, 255, 257, 509, 2600, 25000)
TREE = {"n": HIDDEN, "k": 4096, "split": "rows", "out": "model"}
Count = tuple[str, int, int]


def reductions(group: dist.ProcessGroup, collectives: ModuleType, combine: Callable) -> Iterator[Count]:
    """(what, values that differ from one GPU's, values), every call twice and once out of a CUDA graph."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    for rows in sorted({*ROWS, *BETWEEN}):
        say(group, f"{rows} rows")
        parts = torch.randn(world, rows, HIDDEN, generator=torch.Generator("cuda").manual_seed(rows), device="cuda")
        root = combine(parts)
        mine = slice(rank * rows // world, (rank + 1) * rows // world)
        calls = {"all-reduce": (lambda part=parts[rank]: collectives.tree_all_reduce(part, group, combine), root)}
        if rows % world == 0:
            scatter = lambda part=parts[rank]: collectives.tree_reduce_scatter(part, group, combine)  # noqa: E731
            calls["reduce-scatter"] = scatter, root[mine]
        for name, (call, expected) in calls.items():
            found = [call(), call(), without_peers(call, collectives)(), replayed(call)]
            yield name, sum(differing(out, expected) for out in found), sum(out.numel() for out in found)
        gathered = collectives.gather_parts(parts[rank], group)
        yield "gather", differing(gathered, parts), parts.numel()
        rotated = collectives.tree_all_reduce(parts[(rank + 1) % world], group, combine)
        yield "control: rotated ranks", differing(rotated, root), root.numel()


def replayed(call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """What the third replay of a graph of the call leaves."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for _ in range(3):
        out.view(torch.uint8).fill_(255)
        graph.replay()
    return out


def experts(group: dist.ProcessGroup, routed: ModuleType) -> Iterator[Count]:
    """Owners and shares of the experts against all experts on one GPU, at the sizes of Qwen3.5-35B-A3B."""
    world, rank, moe = dist.get_world_size(group), dist.get_rank(group), Moe("sm90")
    functions = routed.Kernels(
        dispatch=moe.router.dispatch,
        gate_up=moe.gate_up.expert_gate_up,
        act=moe.act.expert_act,
        down=moe.down.expert_down,
        expert_combine=moe.combine.expert_combine,
        combine=moe.combine.combine,
    )
    owned = slice(rank * LARGE.experts // world, (rank + 1) * LARGE.experts // world)
    say(group, "weights drawn")
    for rows in (3, 509, 0, 1, world - 1, world + 1, 2 * world + 1, 64):
        x = moe.tokens(rows, seed=rows)
        chosen, weights = moe.router.router(x, moe.router_weight)
        whole = routed.routed_experts(x, chosen, weights, moe.gate_up_weight, moe.down_weight, functions)
        shared = routed.experts_by_width(x, chosen, weights, *share(moe, rank, world), functions, group)
        yield f"TP{world}", differing(shared, whole), whole.numel()
        if rows % world == 0:
            part = routed.experts_by_width(x, chosen, weights, *share(moe, rank, world), functions, group, True)
            mine = slice(rank * rows // world, (rank + 1) * rows // world)
            yield f"TP{world}, SP", differing(part, whole[mine]), part.numel()
        own = slice(rank, None, world)
        inputs = (t[own].contiguous() for t in (x, chosen, weights))
        by_owner = routed.experts_by_owner(*inputs, moe.gate_up_weight[owned], moe.down_weight[owned], functions, group)
        yield f"EP{world}", differing(by_owner, whole[own]), by_owner.numel()


def launched(world: int) -> Iterator[Callable[[], None]]:
    """What a rank launches: the rows it may have, at each share of the experts, on uninitialised CPU tensors."""
    with mock.patch.object(moe_layer, "drawn", return_value=(None, None, None)):
        moe = Moe("sm90")
    for tokens in (1, 3, 64, 509 // world, 509):
        for owners, widths in ((1, 1), (world, 1), (1, world)):
            yield partial(launch_layer, moe, tokens, LARGE.experts // owners, LARGE.width // widths, widths)


def launch_layer(moe: Moe, tokens: int, experts: int, width: int, widths: int) -> None:
    bf16, hidden, top_k = partial(torch.empty, dtype=torch.bfloat16), LARGE.hidden, LARGE.top_k
    chosen, weights = torch.zeros(tokens, top_k, dtype=torch.int32), torch.empty(tokens, top_k)
    order, offsets = (torch.zeros(count, dtype=torch.int32) for count in (tokens * top_k, experts + 1))
    moe.router.router(bf16(tokens, hidden), bf16(LARGE.experts, hidden))
    moe.router.dispatch(chosen, experts)
    moe.gate_up.expert_gate_up(bf16(tokens, hidden), bf16(experts, 2 * width, hidden), order, offsets)
    moe.act.expert_act(bf16(tokens * top_k, 2 * width), weights, order)
    moe.down.expert_down(bf16(tokens * top_k, width), bf16(experts, hidden, width), order, offsets)
    moe.combine.combine(torch.empty(widths, tokens, top_k, hidden), weights)


def on_rank(group: dist.ProcessGroup) -> None:
    """One process; rank 0 writes the counts of all, after each stage."""
    world = dist.get_world_size(group)
    matmul = render_kernel("matmul_tree", "sm90", TREE)
    rows = []
    for stage, counts in (
        ("reductions", reductions(group, support_module("tree_collectives"), matmul.combine)),
        ("experts", experts(group, support_module("routed_experts"))),
    ):
        differ: Counter[str] = Counter()
        total: Counter[str] = Counter()
        say(group, f"{stage}: starting")
        for name, differing_values, values in counts:
            differ[name] += differing_values
            total[name] += values
            say(group, f"{name}: {differing_values} of {values} on the first rank")
        sums = torch.tensor([[differ[name], total[name]] for name in sorted(total)], device="cuda")
        dist.all_reduce(sums)
        rows += [
            harness.row(f"values that differ from one GPU's: {name}, {world} GPUs (counts, not times)", found, "of", of,
                        None, "> 0 from 3 GPUs on" if "control" in name else "0")
            for name, (found, of) in zip(sorted(total), sums.tolist(), strict=True)
        ]  # fmt: skip
        if dist.get_rank(group) == 0:
            harness.write(f"parallel_bits_h200_x{world}", rows)
            say(group, f"{stage}: written")


def say(group: dist.ProcessGroup, what: str) -> None:
    if dist.get_rank(group) == 0:
        print(what, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    compile_ahead(list(launched(ranks)))
    on_gpus(ranks, on_rank)


if __name__ == "__main__":
    main()
