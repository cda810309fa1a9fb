"""The regions of a dense layer, by the generated package's sm90 kernels: what `bench.step` puts together."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

GENERATED = Path(__file__).resolve().parent.parent / "generated"
CONTRACT = "qwen3_8b"
PAGE = 16
Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The figures of the model that a layer needs."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    layers: int
    eps: float
    theta: float

    @property
    def matrices(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of the layer's products."""
        return {
            "qkv": ((self.heads + 2 * self.kv_heads) * self.head_dim, self.hidden),
            "attn_out": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }

    @property
    def size(self) -> int:
        """Weights of the layer's products."""
        return sum(n * k for n, k in self.matrices.values())


@cache
def shape() -> Shape:
    model = json.loads((GENERATED / CONTRACT / "contract.json").read_text())["model"]
    config = model["config"]
    return Shape(
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        layers=len(model["layers"]),
        eps=config["rms_norm_eps"],
        theta=1e6,
    )


def kernel(region: str) -> ModuleType:
    return importlib.import_module(f"{CONTRACT}.sm90.kernels.{region}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Regions:
    """One implementation of each region of a layer; norms take what was added, and give it back with the norm."""

    add_norm: Callable[[Tensor, Tensor, Tensor], Pair]
    qkv: Callable[[Tensor, Tensor], Tensor]
    turn: Callable[[Tensor, Tensor, Tensors, Tensor], Pair]
    attend: Callable[..., Tensor]
    attn_out: Callable[[Tensor, Tensor], Tensor]
    gate_up: Callable[[Tensor, Tensor], Tensor]
    act: Callable[[Tensor], Tensor]
    down: Callable[[Tensor, Tensor], Tensor]


def heads(qkv: Tensor) -> tuple[Tensor, ...]:
    """q, k and v of [T, qkv], as views [T, heads, head_dim]."""
    s = shape()
    sizes = [count * s.head_dim for count in (s.heads, s.kv_heads, s.kv_heads)]
    return tuple(x.view(len(qkv), -1, s.head_dim) for x in qkv.split(sizes, -1))


def draw(*size: int, device: str = "cuda", scale: float = 1.0, grad: bool = False) -> Tensor:
    """Normal bf16 values; nothing is drawn where kernels are only compiled."""
    if device == "cpu":
        return torch.empty(*size, dtype=torch.bfloat16).requires_grad_(grad)
    return torch.randn(*size, device=device, dtype=torch.bfloat16).mul_(scale).requires_grad_(grad)


def weights(device: str = "cuda", grad: bool = False) -> dict[str, Tensor]:
    s = shape()
    widths = {"attn_norm": s.hidden, "mlp_norm": s.hidden, "q_norm": s.head_dim, "k_norm": s.head_dim}
    found = {region: draw(n, k, device=device, scale=k**-0.5, grad=grad) for region, (n, k) in s.matrices.items()}
    ones = {name: torch.ones(width, device=device, dtype=torch.bfloat16) for name, width in widths.items()}
    return found | {name: one.requires_grad_(grad) for name, one in ones.items()}


def our_turn(q: Tensor, k: Tensor, w: Tensors, positions: Tensor) -> Pair:
    q, k = kernel("q_norm").rms_norm(q, w["q_norm"]), kernel("k_norm").rms_norm(k, w["k_norm"])
    return kernel("rope").rotary(q, k, positions)


def our_paged(q: Tensor, cache: Pair, table: Tensor, starts: Tensor, lengths: Tensor, keys: int) -> Tensor:
    return kernel("attn").paged_attention(q, *cache, table, starts, lengths, 1)


def ours() -> Regions:
    """Regions of a decode step."""
    return Regions(
        add_norm=kernel("mlp_norm").add_rms_norm,
        turn=our_turn,
        attend=our_paged,
        act=kernel("act").silu_gate,
        **{region: kernel(region).matmul for region in shape().matrices},
    )


def our_causal(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
    return kernel("attn").attention(q, k, v, starts)


def our_sum_norm(x: Tensor, r: Tensor, weight: Tensor) -> Pair:
    r = kernel("attn_residual").residual_add(x, r)
    return kernel("mlp_norm").rms_norm(r, weight), r


def our_training() -> Regions:
    """Regions of a trainer layer."""
    return Regions(
        add_norm=our_sum_norm,
        turn=our_turn,
        attend=our_causal,
        act=kernel("act").silu_gate,
        **{region: kernel(region).matmul for region in shape().matrices},
    )
