"""One rank of a trainer with experts that goes through many layouts. usage: moe_process.py JOB.json RANK

Job: name, contract, generated, model, out (folder), port, world (ranks), runs (names of engine_process.py files there;
all on one rank, the first one on every layout), layouts: a list of [tp, sp, ep, experts by width], counts, if the
layer is run alone: a list of [a, b], which stand for a * tp + b tokens.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from moe_gradients import gradients
from trainer_process import scored, without_gpu


class Trainer:
    """One rank: the package of the contract and, for each layout, a model with the checkpoint's weights."""

    def __init__(self, job: dict[str, Any], rank: int) -> None:
        torch.set_num_threads(1)
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
        dist.init_process_group("gloo", rank=rank, world_size=job["world"])
        without_gpu()
        sys.path.insert(0, job["generated"])
        self.name = job["contract"]
        self.model_adapter = self.module("adapters.megatron_model")
        self.moe = self.module("adapters.megatron_moe")
        from safetensors.torch import load_file

        self.tensors = load_file(Path(job["model"]) / "model.safetensors")

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.name}.{name}")

    def model(self, tp: int, sp: bool, ep: int, by_width: bool = False) -> Any:
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=tp if ep == 1 or by_width else 1,
        )
        config = self.model_adapter.transformer_config(
            tensor_parallel=tp,
            sequence_parallel=sp,
            expert_parallel=ep,
            experts_by_width=by_width,
            use_cpu_initialization=True,
            perform_initialization=False,
        )
        model = self.model_adapter.ContractModel(config)
        self.module("weights").load(self.pieces(model), self.tensors)
        return model

    def pieces(self, model: Any) -> list[Any]:
        return list(self.module("adapters.megatron_weights").pieces(model))

    def gathered(self, model: Any) -> bool:
        """Whether the whole tensors that the engine would load are the checkpoint's, bit for bit."""
        whole = self.module("adapters.megatron_weights").gathered(model)
        differing = self.module("bits").differing
        return whole.keys() == self.tensors.keys() and not any(differing(t, whole[n]) for n, t in self.tensors.items())


def state(trainer: Trainer, model: Any, sequences: list[list[int]], rank: int, tp: int, sp: bool) -> dict[str, Any]:
    """What this rank computes of the sequences, and the weights that it holds.

    Groups of tensor parallelism cut the sequences into other batches, so that an expert's owner serves ranks with other
    numbers of tokens.
    """
    turn = rank // tp
    with trainer.module("trace").collecting() as seen:
        logprobs = [
            row
            for part in (sequences[: 1 + turn], sequences[1 + turn :])
            for row in scored(trainer.model_adapter, model, part, "packed", tp if sp else 1)
        ]
    return {
        "logprobs": logprobs,
        "digests": seen.digests,
        "fingerprints": trainer.module("weights").fingerprints(trainer.pieces(model)),
        "gathered": trainer.gathered(model),
    }


def named(tp: int, sp: bool, ep: int, by_width: bool) -> str:
    return f"{tp} {'on' if sp else 'off'} {ep}{' by width' if by_width else ''}"


def tokens(count: int, hidden: int, seed: int) -> torch.Tensor:
    """[count, 1, hidden] bf16. The first half of the tokens are one token, which sends them to the same experts; the
    last one is zero, which ties all experts."""
    x = torch.randn(count, 1, hidden, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    x[: count // 2] = x[:1]
    x[-1:] = 0
    return x


@torch.no_grad()
def layers(trainer: Trainer, job: dict[str, Any], models: dict[str, Any], rank: int) -> dict[str, list[int]]:
    """For each layout and number of tokens how many bits of the layer's output differ from one rank's, of how many.

    Groups of tensor parallelism hold other numbers of tokens at the same time; with sequence parallelism the number is
    each rank's.
    """
    bits, hidden = trainer.module("bits"), trainer.module("package").load().model["hidden_size"]
    trainer.module("regions").BOUND.ledger.case = "layer"
    whole = models["1 off 1"].decoder.layers[0].mlp
    found: dict[str, list[int]] = {}
    known: dict[tuple[int, int], torch.Tensor] = {}
    for tp, sp, ep, by_width in job["layouts"]:
        layout = named(tp, sp, ep, by_width)
        counts = [max(0, a * tp + b) for a, b in job["counts"]]
        for i in range(len(counts)):
            count = counts[(i + rank // tp) % len(counts)] * (tp if sp else 1)
            seed = 1000 * i + rank // tp
            x = tokens(count, hidden, seed)
            mine = x.chunk(tp)[rank % tp] if sp and count else x
            if (count, seed) not in known:
                known[count, seed] = whole(x)[0]
            expected = known[count, seed]
            expected = expected.chunk(tp)[rank % tp] if sp and count else expected
            out = models[layout].decoder.layers[0].mlp(mine)[0]
            found[f"{layout} {i}"] = [bits.differing(out, expected), out.numel()]
    return found


@torch.no_grad()
def rotated(trainer: Trainer, model: Any) -> dict[str, torch.Tensor]:
    """Digests of 509 tokens where the nodes of four ranks are added in rotated order: a wrong that must be seen."""
    kernels, found = trainer.moe.KERNELS, {}
    wrong = dataclasses.replace(kernels, combine=lambda parts, w: kernels.combine(parts.roll(1, 0), w))
    for name, chosen in (("right", kernels), ("rotated", wrong)):
        trainer.moe.KERNELS = chosen
        with trainer.module("trace").collecting() as seen:
            model.decoder.layers[0].mlp(tokens(509, 64, seed=1))
        found[name] = seen.digests["expert_down"]
    trainer.moe.KERNELS = kernels
    return found


def main() -> None:
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    trainer = Trainer(job, rank)
    runs = [torch.load(Path(job["out"]) / f"{run}.pt")["sequences"] for run in job["runs"]]
    result: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for tp, sp, ep, by_width in job["layouts"]:
        layout = named(tp, sp, ep, by_width)
        models[layout] = trainer.model(tp, sp, ep, by_width)
        result[layout] = state(trainer, models[layout], runs[0], rank, tp, sp)
    for run, sequences in zip(job["runs"][1:], runs[1:], strict=True):
        result[run] = state(trainer, models["1 off 1"], sequences, rank, 1, False)
    trainer.module("guard").first_forward("trainer_score")
    if "counts" in job:
        result["layers"] = layers(trainer, job, models, rank)
        result["gradients"] = gradients(trainer, job, models, rank)
        result["rotated"] = rotated(trainer, models["4 off 1"])
    torch.save(result, Path(job["out"]) / f"{job['name']}.{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
