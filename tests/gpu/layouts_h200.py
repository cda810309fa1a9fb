"""Megatron-core over NCCL on every layout of several GPUs: the log-probabilities of one GPU, bit for bit.

usage: python -m tests.gpu.layouts_h200 --out DIR [--contract contracts/qwen3_30b_a3b.yaml] [--repeat 2] [--ranks 2]

A few layers at the model's own sizes, weights drawn on each device. Sequences are packed in batches that differ from
rank to rank. Counts go to DIR/parallel_layouts_<contract>.json; exit code 1 when one is not as it should be.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from bench import harness
from bench.gpus import on_gpus
from examples import tiny
from tests.gpu import package_calls, slices
from tests.support.ahead import compile_ahead
from tests.support.bits import differing

FEW = (1, 64, 200)  # rows of a batch, or tokens whose slots an owner has, where all others are in another batch
CONTROL = "control: nodes rounded to bf16 before they are added"
Layout = tuple[int, bool, int]
Scored = list[torch.Tensor]


def prompts(document: dict[str, Any]) -> list[list[int]]:
    """1 to 400 tokens, a third with a long common beginning."""
    return tiny.prompts(48, document["model"]["config"]["vocab_size"], 400)


def layouts(ranks: int, experts: bool) -> Iterator[Layout]:
    """(tensor parallelism, sequence scattered, owners of experts); one GPU's first."""
    sizes = [size for size in (1, 2, 4, 8) if ranks % size == 0]
    for tp in sizes:
        for sp in (False, True) if tp > 1 else (False,):
            yield from ((tp, sp, ep) for ep in (sizes if experts else (1,)))


def launched(job: dict[str, Any]) -> Iterator[Callable[[], object]]:
    """What the layouts launch."""
    rows = *FEW, sum(map(len, prompts(job["document"])))
    for tp, owners in sorted({(tp, ep) for tp, _, ep in layouts(job["ranks"], job["experts"])}):
        widths = 1 if owners > 1 else tp
        yield from package_calls.calls(job["generated"], job["name"], rows, tp=tp, owners=owners, widths=widths)


def built(job: dict[str, Any], tensors: dict[str, torch.Tensor], layout: Layout) -> tuple[Any, torch.nn.Module]:
    """Megatron-core's model on one layout, with these weights."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    tp, sp, ep = layout
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=tp if ep == 1 else 1,
    )
    model_parallel_cuda_manual_seed(1)
    adapter, weights, load = (
        importlib.import_module(f"{job['name']}.{module}")
        for module in ("adapters.megatron_model", "adapters.megatron_weights", "weights")
    )
    config = adapter.transformer_config(
        tensor_parallel=tp, sequence_parallel=sp, expert_parallel=ep, perform_initialization=False
    )
    network = adapter.ContractModel(config).cuda().eval()
    load.load(weights.pieces(network), tensors)
    return adapter, network


@torch.no_grad()
def scored(adapter: Any, network: torch.nn.Module, sequences: list[list[int]], layout: Layout, rank: int) -> Scored:
    """Log-probabilities of every sequence's tokens, cut at another place for every group of tensor parallelism."""
    tp, sp, _ = layout
    turn = 1 + rank // tp
    found = []
    for part in (sequences[:turn], sequences[turn:]):
        starts = [0]
        for sequence in part:
            starts.append(starts[-1] + len(sequence))
        surplus = -starts[-1] % tp if sp else 0
        flat = torch.tensor([t for s in part for t in s] + [0] * surplus, device="cuda")
        ends = starts + ([starts[-1] + surplus] if surplus else [])
        rows = adapter.score(network, flat[None], starts=torch.tensor(ends, dtype=torch.int32, device="cuda"))[0]
        found += [rows[a : b - 1] for a, b in pairwise(starts)]
    return found


def native(contract: str) -> Any:
    """A context in which nodes travel as the frameworks' own do, rounded to the model's dtype."""
    tree = importlib.import_module(f"{contract}.tree_collectives").tree_all_reduce

    def rounded(part: torch.Tensor, *more: Any) -> torch.Tensor:
        return tree(part.bfloat16().to(part.dtype), *more)

    return mock.patch(f"{contract}.trainer_collectives.tree_all_reduce", rounded)


def on_rank(group: dist.ProcessGroup, job: dict[str, Any]) -> None:
    """One process: every layout against the first rank's one GPU; rank 0 writes the counts after each."""
    sys.path.insert(0, str(job["generated"].resolve()))
    rank, began = dist.get_rank(group), time.monotonic()
    sequences = prompts(job["document"])
    tensors = tiny.weights(job["document"], device="cuda")
    alone, found = torch.empty(0), []

    def count(name: str, rows: Scored, goal: str) -> None:
        counts = torch.tensor([differing(torch.cat(rows), alone), len(alone)], device="cuda")
        dist.all_reduce(counts)
        name = f"log-probabilities that differ from one GPU's: {job['model']}, {name} (counts, not times)"
        found.append(harness.row(name, *counts[:1].tolist(), "of", *counts[1:].tolist(), None, goal))
        if rank == 0:
            print(f"{time.monotonic() - began:5.1f} s  {name}: {counts.tolist()}", flush=True)

    for layout in layouts(job["ranks"], job["experts"]):
        adapter, network = built(job, tensors, layout)
        score = partial(scored, adapter, network, sequences, layout, rank)
        rows = score()
        if not len(alone):
            alone = torch.cat(rows).contiguous()
            dist.broadcast(alone, 0)
        tp, sp, ep = layout
        place = f"TP{tp}" + (f" EP{ep}" if job["experts"] else "") + (f" SP {'on' if sp else 'off'}" if tp > 1 else "")
        count(place, rows, "0")
        if tp > 1 and not sp:
            with native(job["name"]):
                count(f"{place}, {CONTROL}", score(), "> 0")
        del network
        if rank == 0:
            command = f"python -m tests.gpu.layouts_h200 --contract contracts/{job['name']}.yaml"
            data = {"machine": harness.machine(), "versions": harness.versions(), "command": command, "rows": found}
            (job["out"] / f"parallel_layouts_{job['name']}.json").write_text(json.dumps(data, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--contract", type=Path, default=Path("contracts/qwen3_30b_a3b.yaml"))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    generated = given.out / "generated"
    name, document = slices.compiled(given.contract, given.repeat, generated)
    job = {"out": given.out, "generated": generated, "name": name, "document": document, "ranks": given.ranks}
    job["model"] = f"{name}, {len(document['model']['layers'])} layers"
    job["experts"] = "num_experts" in document["model"]["config"]
    compile_ahead(list(launched(job)))
    on_gpus(given.ranks, on_rank, job)
    rows = json.loads((given.out / f"parallel_layouts_{name}.json").read_text())["rows"]
    sys.exit(any((row["ours_ms"] > 0) != (row["goal"] == "> 0") for row in rows))


if __name__ == "__main__":
    main()
