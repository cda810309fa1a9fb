"""One training step with the contract's forward: the gradient of every parameter against a float64 model.

The forward is exact by contract; gradients promise no bits, so here a tolerance is right: bf16 keeps 8 bits, and errors
of the order of 2**-8 of a tensor's norm come from the rounding of activations.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

from tests.runtimes.conftest import Workplace
from tests.runtimes.processes import run_trainer

pytestmark = pytest.mark.runtime
SEQUENCES = [[7, 3, 201, 5, 5, 90, 17, 64], [1, 2, 250, 30]]


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def turned(x: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary of [t, heads, d] at positions 0.. in float64."""
    half = x.shape[-1] // 2
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * theta ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.split(half, -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def reference(w: dict[str, torch.Tensor], figures: dict[str, Any], layers: int, tokens: torch.Tensor) -> torch.Tensor:
    """log p of every next token of one sequence, in float64, written from the model's definition."""
    heads, size = figures["num_attention_heads"], figures["head_dim"]
    group = heads // figures["num_key_value_heads"]
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(layers):
        p = {k.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): v for k, v in w.items()}
        y = norm(x, p["input_layernorm"])
        q, k, v = (functional.linear(y, p[f"self_attn.{n}_proj"]).unflatten(-1, (-1, size)) for n in "qkv")
        q = turned(norm(q, p["self_attn.q_norm"]), figures["rope_theta"]).transpose(0, 1)
        k = turned(norm(k, p["self_attn.k_norm"]), figures["rope_theta"]).transpose(0, 1).repeat_interleave(group, 0)
        v = v.transpose(0, 1).repeat_interleave(group, 0)
        scores = q @ k.mT * size**-0.5 + torch.full((len(x), len(x)), -torch.inf, dtype=x.dtype).triu(1)
        x = x + functional.linear((scores.softmax(-1) @ v).transpose(0, 1).flatten(1), p["self_attn.o_proj"])
        y = norm(x, p["post_attention_layernorm"])
        gate, up = (functional.linear(y, p[f"mlp.{n}_proj"]) for n in ("gate", "up"))
        x = x + functional.linear(functional.silu(gate) * up, p["mlp.down_proj"])
    logits = functional.linear(norm(x, w["model.norm.weight"]), w["lm_head.weight"])
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]


@pytest.mark.parametrize(
    ("dtype", "layout"), [("bf16", (1, False)), ("fp32", (1, False)), ("fp32", (2, False)), ("bf16", (2, True))]
)
def test_every_parameter(dtype: str, layout: tuple[int, bool], request: pytest.FixtureRequest) -> None:
    place: Workplace = request.getfixturevalue(dtype)
    tp, sp = layout
    job = place.job(f"gradients_{tp}{sp}", tp=tp, sp=sp, gradients=SEQUENCES, runs=[], batchings=[])
    found = [rank["gradients"] for rank in run_trainer(job)]
    weights = {k: v.double().requires_grad_() for k, v in load_file(place.model / "model.safetensors").items()}
    model = place.document["model"]
    losses = [reference(weights, model["config"], len(model["layers"]), torch.tensor(s)).sum() for s in SEQUENCES]
    torch.stack(losses).sum().backward()
    assert all(gradients.keys() == weights.keys() for gradients in found)
    # The largest errors seen are 3.2e-2 and 1.2e-6, both of a norm's weight.
    allowed = {"bf16": 8e-2, "fp32": 5e-6}[dtype]
    for name, weight in weights.items():
        for gradients in found:
            gradient = gradients[name].double()
            assert torch.isfinite(gradient).all(), name
            assert gradient.count_nonzero() > 0, f"{name} has no gradient"
            error = float((gradient - weight.grad).norm() / weight.grad.norm())
            assert error < allowed, f"{name}: relative error {error:.2e}"
