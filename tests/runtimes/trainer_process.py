"""One rank of a trainer: scores what engines sampled. usage: trainer_process.py JOB.json RANK

Job: name, contract, generated, model, tp, sp, ep, world (ranks), port, out (folder), runs (names of engine_process.py's
files there), batchings (the first one is traced), mutations, whole (the run whose whole distributions are computed),
gradients (sequences whose summed log-probability is differentiated).
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def without_gpu() -> None:
    """Megatron asks CUDA for a device and for a random state even when it is told to initialise on the CPU."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    @contextlib.contextmanager
    def fork(self: Any, name: str = "") -> Iterator[None]:
        yield

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    CudaRNGStatesTracker.fork = fork


def start(job: dict[str, Any], rank: int) -> Any:
    """Join the process group, build the model of the contract and load the checkpoint."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
    dist.init_process_group("gloo", rank=rank, world_size=job["world"])
    from megatron.core import parallel_state

    without_gpu()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=job["tp"],
        expert_model_parallel_size=job["ep"],
        expert_tensor_parallel_size=job["tp"] if job["ep"] == 1 else 1,
    )
    sys.path.insert(0, job["generated"])
    adapter = importlib.import_module(f"{job['contract']}.adapters.megatron_model")
    weights = importlib.import_module(f"{job['contract']}.adapters.megatron_weights")
    support = importlib.import_module(f"{job['contract']}.weights")
    config = adapter.transformer_config(
        tensor_parallel=job["tp"],
        sequence_parallel=job["sp"],
        expert_parallel=job["ep"],
        use_cpu_initialization=True,
        perform_initialization=False,
    )
    model = adapter.ContractModel(config)
    from safetensors.torch import load_file

    support.load(weights.pieces(model), load_file(Path(job["model"]) / "model.safetensors"))
    return adapter, model


def batches(sequences: list[list[int]], batching: str, multiple: int) -> Iterator[tuple[list[int], torch.Tensor, Any]]:
    """(indices, tokens [b, s] or packed [1, t], sequence starts or None), lengths rounded up to `multiple`."""
    if batching == "alone":
        for i, sequence in enumerate(sequences):
            pad = -len(sequence) % multiple
            yield [i], torch.tensor([sequence + [0] * pad]), None
    elif batching == "padded":
        longest = max(map(len, sequences))
        longest += -longest % multiple
        rows = [s + [0] * (longest - len(s)) for s in sequences]
        yield list(range(len(sequences))), torch.tensor(rows), None
    else:
        starts = [0]
        for sequence in sequences:
            starts.append(starts[-1] + len(sequence))
        pad = -starts[-1] % multiple
        flat = [t for s in sequences for t in s] + [0] * pad
        ends = starts + ([starts[-1] + pad] if pad else [])
        yield list(range(len(sequences))), torch.tensor([flat]), torch.tensor(ends, dtype=torch.int32)


@torch.no_grad()
def scored(adapter: Any, model: Any, sequences: list[list[int]], batching: str, multiple: int) -> list[torch.Tensor]:
    """log p of tokens 1.. of every sequence, fp32."""
    found: dict[int, torch.Tensor] = {}
    for indices, tokens, starts in batches(sequences, batching, multiple):
        if batching == "padded":  # the layout [s, b], which `score` does without
            out = model(tokens, None, None, labels=tokens.roll(-1, 1))
        else:
            out = adapter.score(model, tokens, starts=starts)
        for place, i in enumerate(indices):
            n = len(sequences[i])
            row = out[place, : n - 1] if starts is None else out[0, starts[place] : starts[place] + n - 1]
            found[i] = row.clone()
    return [found[i] for i in range(len(sequences))]


def gradients(job: dict[str, Any], adapter: Any, model: Any) -> dict[str, torch.Tensor]:
    """The gradient of the sum of all next-token log-probabilities, whole tensors under the checkpoint's names."""
    weights = importlib.import_module(f"{job['contract']}.adapters.megatron_weights")
    multiple = job["tp"] if job["sp"] else 1
    for indices, tokens, _ in batches(job["gradients"], "alone", multiple):
        logprobs = adapter.score(model, tokens)
        logprobs[0, : len(job["gradients"][indices[0]]) - 1].sum().backward()
    for name, parameter in model.named_parameters():
        # What Megatron's finalisation sums: replicated weights that each rank fed with a share of the rows or heads.
        if "q_layernorm" in name or "k_layernorm" in name or getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad)
    held = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
        whole = weights.gathered(model)
        for name, parameter in model.named_parameters():
            parameter.copy_(held[name])
    return whole


def main() -> None:
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)
    adapter, model = start(job, rank)
    trace = importlib.import_module(f"{job['contract']}.trace")
    guard = importlib.import_module(f"{job['contract']}.guard")
    result: dict[str, Any] = {}
    for mutation in job.get("mutations", [""]):
        wrong = importlib.import_module("mutations").apply(job["contract"], mutation) if mutation else nullcontext()
        with wrong:
            for run in job["runs"]:
                sequences = torch.load(Path(job["out"]) / f"{run}.pt")["sequences"]
                for batching in job["batchings"]:
                    traced = batching == job["batchings"][0]
                    with trace.collecting() if traced else nullcontext(trace.Trace()) as seen:
                        logprobs = scored(adapter, model, sequences, batching, job["tp"] if job["sp"] else 1)
                    result["|".join((run, batching, mutation))] = {"logprobs": logprobs, "digests": seen.digests}
    if job.get("whole"):
        sequences = torch.load(Path(job["out"]) / f"{job['whole']}.pt")["sequences"]
        with torch.no_grad():
            result["whole"] = [adapter.distributions(model, torch.tensor(sequence)) for sequence in sequences]
    if job.get("gradients"):
        result["gradients"] = gradients(job, adapter, model)
    guard.first_forward("trainer_fwd" if job.get("gradients") else "trainer_score")
    result["report"] = importlib.import_module(f"{job['contract']}.ledger").report(
        importlib.import_module(f"{job['contract']}.regions").BOUND.ledger,
        side="trainer",
        rank=rank,
        outstanding=guard.outstanding(syncs=0, steps=0),
    )
    torch.save(result, Path(job["out"]) / f"{job['name']}.{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
