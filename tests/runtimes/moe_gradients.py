"""Gradients of a layer of experts on every layout against float64: they promise no bits, so a tolerance is right."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def reference(x: torch.Tensor, chosen: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """The layer in float64, [T, H] -> [T, H], with the experts chosen beforehand."""
    router, gate_up, down = weights
    shares = (x @ router.T).gather(1, chosen).softmax(1)
    gate, up = torch.einsum("th,tknh->tkn", x, gate_up[chosen]).chunk(2, -1)
    rows = torch.einsum("tki,tkhi->tkh", torch.nn.functional.silu(gate) * up, down[chosen])
    return (rows * shares[..., None]).sum(1)


def exact(trainer: Any, whole: Any, groups: int) -> tuple[list[torch.Tensor], ...]:
    """Inputs of every group of tensor parallelism, slopes of the outputs, and the gradients in float64: of the inputs,
    and of router, gate_up and down."""
    generator = torch.Generator().manual_seed(7)
    hidden = whole.router.shape[1]
    inputs = [torch.randn(24 + 8 * i, hidden, generator=generator).to(torch.bfloat16) for i in range(groups)]
    slopes = [torch.randn(x.shape, generator=generator) for x in inputs]
    weights = [p.detach().double().requires_grad_() for p in (whole.router, whole.gate_up, whole.down)]
    precise = [x.double().requires_grad_() for x in inputs]
    for x, wide, slope in zip(inputs, precise, slopes, strict=True):
        with torch.no_grad():
            chosen, _ = trainer.module("regions").ops.router(x, whole.router, "router")
        (reference(wide, chosen.long(), *weights) * slope).sum().backward()
    return inputs, slopes, [x.grad for x in precise], [w.grad for w in weights]


def gradients(trainer: Any, job: dict[str, Any], models: dict[str, Any], rank: int) -> dict[str, list[float]]:
    """For each layout the errors of the gradients of x, router, gate_up and down, relative to float64's norms."""
    model = trainer.module("package").load().model
    experts, width, hidden = (model[n] for n in ("num_experts", "moe_intermediate_size", "hidden_size"))
    whole = models["1 off 1"].decoder.layers[0].mlp
    found: dict[str, list[float]] = {}
    known: dict[int, tuple[list[torch.Tensor], ...]] = {}
    for layout, mlp in ((name, built.decoder.layers[0].mlp) for name, built in models.items()):
        tp, sp = mlp.tp.size(), mlp.sequence_parallel
        groups = job["world"] // tp
        if groups not in known:
            known[groups] = exact(trainer, whole, groups)
        inputs, slopes, exact_inputs, weights = known[groups]

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
        pairs = [(x.grad.double()[:, 0], own(exact_inputs[rank // tp]))]
        pairs += zip((router, gate_up.flatten(1, 2), down), weights, strict=True)
        found[layout] = [float((a - b).norm() / b.norm()) for a, b in pairs]
    return found
