"""The hybrid model in float64, written from its definition: what gradients are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

Weights = Mapping[str, torch.Tensor]
EPS = 1e-6


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of mean square one."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The recurrence token by token: q, k [T, HV, K], v [T, HV, V], g, beta [T, HV] -> [T, HV, V]."""
    state, out = v.new_zeros(v.shape[1], k.shape[2], v.shape[2]), []
    for t in range(len(v)):
        state = state * g[t, :, None, None].exp()
        change = beta[t, :, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
        state = state + torch.einsum("hk,hv->hkv", k[t], change)
        out.append(torch.einsum("hk,hkv->hv", q[t], state) * q.shape[2] ** -0.5)
    return torch.stack(out)


def linear_attention(w: Weights, figures: Mapping[str, Any], y: torch.Tensor) -> torch.Tensor:
    """A GDN layer on the normed tokens [T, H] of one sequence."""
    size, heads = figures["linear_key_head_dim"], figures["linear_num_key_heads"]
    group = figures["linear_num_value_heads"] // heads
    mixed, z, b, a = (functional.linear(y, w[f"in_proj_{name}.weight"]) for name in ("qkv", "z", "b", "a"))
    taps = w["conv1d.weight"].shape[-1]
    mixed = functional.pad(mixed.T, (taps - 1, 0))[None]
    mixed = functional.silu(functional.conv1d(mixed, w["conv1d.weight"], groups=mixed.shape[1])[0].T)
    qk, v = mixed.split((2 * heads * size, mixed.shape[1] - 2 * heads * size), -1)
    qk = qk.unflatten(-1, (2, heads, size))
    q, k = (qk * torch.rsqrt(qk.square().sum(-1, keepdim=True) + EPS)).repeat_interleave(group, 2).unbind(1)
    v, z = (x.unflatten(-1, (-1, figures["linear_value_head_dim"])) for x in (v, z))
    g = -w["A_log"].exp() * functional.softplus(a + w["dt_bias"])
    out = gated_delta_rule(q, k, v, g, b.sigmoid())
    return functional.linear((unit(out) * w["norm.weight"] * functional.silu(z)).flatten(1), w["out_proj.weight"])


def turned(x: torch.Tensor, theta: float, turning: int) -> torch.Tensor:
    """Rotary of the first `turning` dimensions of [T, heads, D] at positions 0.."""
    half = turning // 2
    angles = torch.arange(len(x), dtype=x.dtype)[:, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    first, second, rest = x.split((half, half, x.shape[-1] - turning), -1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine, rest), -1)


def attention(w: Weights, figures: Mapping[str, Any], y: torch.Tensor) -> torch.Tensor:
    """Gated attention on the normed tokens [T, H] of one sequence."""
    size, theta = figures["head_dim"], figures["rope_theta"]
    turning = round(size * figures["partial_rotary_factor"])
    group = figures["num_attention_heads"] // figures["num_key_value_heads"]
    q, k, v = (functional.linear(y, w[f"{name}_proj.weight"]).unflatten(-1, (-1, size)) for name in "qkv")
    q, gate = q.unflatten(1, (-1, 2)).unbind(2)
    q, k = (unit(x) * (1 + w[f"{name}_norm.weight"]) for x, name in ((q, "q"), (k, "k")))
    q, k = (turned(x, theta, turning).transpose(0, 1) for x in (q, k))
    k, v = (x.repeat_interleave(group, 0) for x in (k, v.transpose(0, 1)))
    scores = q @ k.mT * size**-0.5 + torch.full((len(y), len(y)), -torch.inf, dtype=y.dtype).triu(1)
    out = (scores.softmax(-1) @ v).transpose(0, 1) * gate.sigmoid()
    return functional.linear(out.flatten(1), w["o_proj.weight"])


def mlp(w: Weights, name: str, y: torch.Tensor) -> torch.Tensor:
    gate, up = (functional.linear(y, w[f"{name}.{part}_proj.weight"]) for part in ("gate", "up"))
    return functional.linear(functional.silu(gate) * up, w[f"{name}.down_proj.weight"])


def experts(w: Weights, figures: Mapping[str, Any], y: torch.Tensor) -> torch.Tensor:
    """The chosen experts and the shared one; every expert sees every token, which is the same and simple."""
    logits, chosen = functional.linear(y, w["gate.weight"]).topk(figures["num_experts_per_tok"], -1)
    shares = y.new_zeros(len(y), figures["num_experts"]).scatter(1, chosen, logits.softmax(-1))
    routed = sum(shares[:, [i]] * mlp(w, f"experts.{i}", y) for i in range(figures["num_experts"]))
    return routed + functional.linear(y, w["shared_expert_gate.weight"]).sigmoid() * mlp(w, "shared_expert", y)


def logprobs(w: Weights, model: Mapping[str, Any], tokens: torch.Tensor) -> torch.Tensor:
    """log p of every next token of one sequence [T] -> [T - 1]; `model` is the contract's."""
    x = w["model.embed_tokens.weight"][tokens]
    for i, kind in enumerate(model["layers"]):

        def below(place: str, layer: str = f"model.layers.{i}") -> Weights:
            start = f"{layer}.{place}."
            return {name.removeprefix(start): tensor for name, tensor in w.items() if name.startswith(start)}

        mixer, place = (attention, "self_attn") if kind == "attention" else (linear_attention, "linear_attn")
        y = unit(x) * (1 + below("input_layernorm")["weight"])
        x = x + mixer(below(place), model["config"], y)
        y = unit(x) * (1 + below("post_attention_layernorm")["weight"])
        x = x + experts(below("mlp"), model["config"], y)
    logits = functional.linear(unit(x) * (1 + w["model.norm.weight"]), w["lm_head.weight"])
    return logits.log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
