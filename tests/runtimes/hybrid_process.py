"""One rank of a hybrid trainer that goes through many layouts. usage: hybrid_process.py JOB.json RANK

Job: name, contract, generated, model, out (folder), port, world (ranks), layouts: a list of [tp, sp, ep], runs (names
of engine_process.py's files there; all by one rank alone, the last one on every layout), gradients (sequences whose
summed log-probability is differentiated on every layout).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hybrid_mutations import MUTATIONS, apply
from moe_process import Trainer, state
from trainer_process import batches, scored


def gradients(trainer: Trainer, model: Any, sequences: list[list[int]], layout: list[int]) -> dict[str, torch.Tensor]:
    """Whole gradients of the sum of all log-probabilities, under the checkpoint's names, as Megatron finalises them."""
    from megatron.core.distributed import DistributedDataParallelConfig
    from megatron.core.distributed.finalize_model_grads import _allreduce_non_tensor_model_parallel_grads

    tp, sp, ep = layout
    for indices, tokens, _ in batches(sequences, "alone", tp if sp else 1):
        logprobs = trainer.model_adapter.score(model, tokens)
        logprobs[0, : len(sequences[indices[0]]) - 1].sum().backward()
    model.ddp_config = DistributedDataParallelConfig()
    _allreduce_non_tensor_model_parallel_grads([model], model.config, model.embedding.word_embeddings.tp_group)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # An owner of experts also served the groups that hold the same sequences.
            copies = max(1, ep // tp) if name.endswith(("mlp.gate_up", "mlp.down")) else 1
            parameter.copy_(parameter.grad / copies)
    return trainer.module("adapters.megatron_weights").gathered(model)


def counted(model: Any) -> int:
    """How many numbers of this rank the norm of all gradients counts."""
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate

    group = model.embedding.word_embeddings.tp_group
    return sum(p.numel() for p in model.parameters() if param_is_not_tensor_parallel_duplicate(p, group))


def wrongs(trainer: Trainer, model: Any, sequences: list[list[int]]) -> dict[str, dict[str, Any]]:
    """The same sequences with one wrong at a time."""
    found = {}
    for name in MUTATIONS:
        with apply(trainer.name, name):
            found[name] = {"logprobs": scored(trainer.model_adapter, model, sequences, "packed", 1), "digests": {}}
    return found


def cast(trainer: Trainer, model: Any, sequences: list[list[int]]) -> dict[str, Any]:
    """In Megatron's wrapper, which casts a model to bf16: the decays must stay what they are."""
    from megatron.core.transformer.module import Float16Module

    wrapped = Float16Module(model.config, model)
    return {
        "logprobs": scored(trainer.model_adapter, wrapped, sequences, "padded", 1),
        "dtypes": {name: p.dtype for name, p in wrapped.named_parameters()},
    }


def main() -> None:
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    trainer = Trainer(job, rank)
    result: dict[str, Any] = {}
    for tp, sp, ep in job["layouts"]:
        layout = f"{tp} {'on' if sp else 'off'} {ep}"
        model = trainer.model(tp, sp, ep)
        result[layout] = {"counted": counted(model)}
        if "gradients" in job:
            result[layout]["gradients"] = gradients(trainer, model, job["gradients"], [tp, sp, ep])
        for run in job["runs"] if rank == 0 and (tp, ep) == (1, 1) else job["runs"][-1:]:
            sequences = torch.load(Path(job["out"]) / f"{run}.pt")["sequences"]
            result[f"{layout} {run}"] = state(trainer, model, sequences, rank, tp, sp)
        if job["runs"] and (tp, ep) == (1, 1):
            trainer.module("guard").first_forward("trainer_score")
            if rank == 0:
                result["probes"] = trainer.module("probes").probe()
                result["wrongs"] = wrongs(trainer, model, sequences[:4])
                result["cast"] = cast(trainer, model, sequences)
    torch.save(result, Path(job["out"]) / f"{job['name']}.{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
