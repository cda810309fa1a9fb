# SPDX-License-Identifier: Apache-2.0
"""One rank of a trainer with experts that goes through many layouts. usage: moe_process.py JOB.json RANK

Job: name, contract, generated, model, out (folder), port, world (ranks), run (name of engine_process.py's file there),
layouts: a list of [tp, sp, ep], counts: a list of [a, b], which stand for a * tp + b tokens.
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
from trainer_process import scored, without_gpu


class Trainer:
    """The package of the contract and, for each layout, a model with the checkpoint's weights."""

    def __init__(self, job: dict[str, Any]) -> None:
        sys.path.insert(0, job["generated"])
        self.name = job["contract"]
        self.model_adapter = self.module("adapters.megatron_model")
        self.moe = self.module("adapters.megatron_moe")
        from safetensors.torch import load_file

        self.tensors = load_file(Path(job["model"]) / "model.safetensors")

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.name}.{name}")

    def model(self, tp: int, sp: bool, ep: int) -> Any:
        from megatron.core import parallel_state

        parallel_state.destroy_model_parallel()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=tp if ep == 1 else 1,
        )
        config = self.model_adapter.transformer_config(
            tensor_parallel=tp,
            sequence_parallel=sp,
            expert_parallel=ep,
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
    for tp, sp, ep in job["layouts"]:
        layout = f"{tp} {'on' if sp else 'off'} {ep}"
        counts = [max(0, a * tp + b) for a, b in job["counts"]]
        for i in range(len(counts)):
            count = counts[(i + rank // tp) % len(counts)] * (tp if sp else 1)
            x = tokens(count, hidden, seed=1000 * i + rank // tp)
            mine = x.chunk(tp)[rank % tp] if sp and count else x
            expected = whole(x)[0]
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


def reference(x: torch.Tensor, chosen: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """The layer in float64, [T, H] -> [T, H], with the experts chosen beforehand."""
    router, gate_up, down = weights
    shares = (x @ router.T).gather(1, chosen).softmax(1)
    gate, up = torch.einsum("th,tknh->tkn", x, gate_up[chosen]).chunk(2, -1)
    rows = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, down[chosen])
    return (rows * shares[..., None]).sum(1)


def gradients(trainer: Trainer, job: dict[str, Any], models: dict[str, Any], rank: int) -> dict[str, list[float]]:
    """For each layout the errors of the gradients of x, router, gate_up and down, relative to float64's norms."""
    layout = trainer.module("package").load().model
    experts, width, hidden = (layout[n] for n in ("num_experts", "moe_intermediate_size", "hidden_size"))
    whole = models["1 off 1"].decoder.layers[0].mlp
    found: dict[str, list[float]] = {}
    for tp, sp, ep in job["layouts"]:
        groups = job["world"] // tp
        mlp = models[f"{tp} {'on' if sp else 'off'} {ep}"].decoder.layers[0].mlp
        generator = torch.Generator().manual_seed(7)
        inputs = [torch.randn(24 + 8 * i, hidden, generator=generator).to(torch.bfloat16) for i in range(groups)]
        slopes = [torch.randn(x.shape, generator=generator) for x in inputs]
        with torch.no_grad():
            chosen = [trainer.module("regions").ops.router(x, whole.router, "router")[0].long() for x in inputs]
        exact = [p.detach().double().requires_grad_() for p in (whole.router, whole.gate_up, whole.down)]
        exact_inputs = [x.double().requires_grad_() for x in inputs]
        for x, experts_of, slope in zip(exact_inputs, chosen, slopes, strict=True):
            (reference(x, experts_of, *exact) * slope).sum().backward()

        def own(tensor: torch.Tensor, cut: bool = sp, ranks: int = tp) -> torch.Tensor:
            return tensor.chunk(ranks)[rank % ranks] if cut else tensor

        x = own(inputs[rank // tp]).clone()[:, None].requires_grad_()
        for parameter in mlp.parameters():
            parameter.grad = None
        (mlp(x)[0].float()[:, 0] * own(slopes[rank // tp])).sum().backward()
        # Every rank's share at its place in the whole weight; what all hold is counted once.
        router = mlp.router.grad.double() / (1 if sp else tp)
        gate_up = torch.zeros(experts, 2, width, hidden, dtype=torch.float64)
        down = torch.zeros(experts, hidden, width, dtype=torch.float64)
        mine = slice(mlp.ep.rank() * len(mlp.down), (mlp.ep.rank() + 1) * len(mlp.down))
        share = mlp.down.shape[2]
        place = slice(rank % tp * share, (rank % tp + 1) * share) if share < width else slice(None)
        gate_up[mine, :, place] = mlp.gate_up.grad.double().unflatten(1, (2, -1))
        down[mine, :, place] = mlp.down.grad.double()
        for whole_gradient in (router, gate_up, down):
            dist.all_reduce(whole_gradient)
        pairs = [(x.grad.double()[:, 0], own(exact_inputs[rank // tp].grad))]
        pairs += zip((router, gate_up.flatten(1, 2), down), (p.grad for p in exact), strict=True)
        found[f"{tp} {'on' if sp else 'off'} {ep}"] = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return found


def main() -> None:
    job, rank = json.loads(Path(sys.argv[1]).read_text()), int(sys.argv[2])
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(job["port"])}
    dist.init_process_group("gloo", rank=rank, world_size=job["world"])
    without_gpu()
    trainer = Trainer(job)
    sequences = torch.load(Path(job["out"]) / f"{job['run']}.pt")["sequences"]
    result: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for tp, sp, ep in job["layouts"]:
        layout = f"{tp} {'on' if sp else 'off'} {ep}"
        models[layout] = trainer.model(tp, sp, ep)
        # Groups of tensor parallelism cut the sequences into other batches, so that an expert's owner serves ranks with
        # other numbers of tokens.
        turn = rank // tp
        with trainer.module("trace").collecting() as seen:
            logprobs = [
                row
                for part in (sequences[: 1 + turn], sequences[1 + turn :])
                for row in scored(trainer.model_adapter, models[layout], part, "packed", tp if sp else 1)
            ]
        result[layout] = {
            "logprobs": logprobs,
            "digests": seen.digests,
            "fingerprints": trainer.module("weights").fingerprints(trainer.pieces(models[layout])),
            "gathered": trainer.gathered(models[layout]),
        }
    trainer.module("guard").first_forward("trainer_score")
    result["layers"] = layers(trainer, job, models, rank)
    result["gradients"] = gradients(trainer, job, models, rank)
    result["rotated"] = rotated(trainer, models["4 off 1"])
    torch.save(result, Path(job["out"]) / f"{job['name']}.{rank}.pt")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
