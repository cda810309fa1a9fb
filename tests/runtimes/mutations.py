"""Small wrongs, each put into one side only: the test of the tests. A mutation replaces functions behind the guard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional

Table = dict[tuple[str, str], Callable[..., Any]]
NORMS = ("attn_norm", "mlp_norm", "final_norm", "q_norm", "k_norm")


def _constant(contract: str, regions: tuple[str, ...], name: str, value: Any) -> Iterator[Any]:
    for region in regions:
        yield patch.object(importlib.import_module(f"{contract}.cpu.kernels.{region}"), name, value)


def _leaves(contract: str, leaves: int) -> Iterator[Any]:
    for region in ("attn_out", "down"):
        module = importlib.import_module(f"{contract}.cpu.kernels.{region}")
        yield patch.object(module, "LEAVES", leaves)
        yield patch.object(module, "LEAF", module.K // leaves)


def _torch_norm(*, round_first: bool = False, mean: bool = False) -> Callable[..., Any]:
    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if mean:
            wide = x.float()
            return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight.float()).to(x.dtype)
        if round_first:
            return functional.rms_norm(x, x.shape[-1:], None, 1e-6) * weight
        return functional.rms_norm(x.float(), x.shape[-1:], weight.float(), 1e-6).to(x.dtype)

    return norm


def _silu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    return (gate / (torch.exp(-gate) + 1.0) * up).to(gate_up.dtype)


def _silu_rounded(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, -1)
    return functional.silu(gate) * up


def _linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.linear(x.float(), weight.float()).to(x.dtype)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    parts = []
    for a, b in zip(starts.tolist(), starts.tolist()[1:], strict=False):
        one = (x[a:b].transpose(0, 1)[None] for x in (q, k, v))
        parts.append(functional.scaled_dot_product_attention(*one, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(parts)


def _fp32_table(module: Any) -> torch.Tensor:
    """The table as frameworks make it: frequencies and angles in fp32, torch's cosine and sine."""
    frequencies = 1.0 / module.THETA ** (torch.arange(0, module.ROTARY_DIM, 2, dtype=torch.float) / module.ROTARY_DIM)
    angles = torch.arange(module.MAX_POSITIONS, dtype=torch.float)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def _rotary_table(contract: str) -> Iterator[Any]:
    module = importlib.import_module(f"{contract}.cpu.kernels.rope")
    made = _fp32_table(module)
    yield patch.object(module, "table", lambda *_: made)


def _unrounded_residual() -> dict[tuple[str, str], Callable[..., Any]]:
    """The order of the stock engine: the norm reads the sum before it is rounded."""
    wide: list[torch.Tensor] = []

    def add(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        wide[:] = [x.float() + residual.float()]
        return wide[0].to(x.dtype)

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        source = wide[0] if wide and wide[0].shape == x.shape else x.float()
        return functional.rms_norm(source, x.shape[-1:], weight.float(), 1e-6).to(x.dtype)

    return {
        ("attn_residual", "residual_add"): add,
        ("mlp_residual", "residual_add"): add,
        ("mlp_norm", "rms_norm"): norm,
        ("final_norm", "rms_norm"): norm,
    }


def _table_changes(table: Table, name: str) -> dict[tuple[str, str], Callable[..., Any]]:
    rotary = table["rope", "rotary"]
    match name:
        case "torch rms_norm":
            return {(r, "rms_norm"): _torch_norm() for r in NORMS}
        case "rms_norm by mean and rsqrt":
            return {(r, "rms_norm"): _torch_norm(mean=True) for r in NORMS}
        case "rms_norm rounds before gamma":
            return {(r, "rms_norm"): _torch_norm(round_first=True) for r in NORMS}
        case "silu with torch.exp":
            return {("act", "silu_gate"): _silu}
        case "silu rounded before the product":
            return {("act", "silu_gate"): _silu_rounded}
        case "linear by torch":
            return {(r, "matmul"): _linear for r in ("qkv", "gate_up")}
        case "head in the model dtype":
            head = table["head", "matmul"]
            return {("head", "matmul"): lambda x, w: head(x, w).to(torch.bfloat16).float()}
        case "attention by torch":
            return {("attn", "attention"): _sdpa}
        case "log_softmax by torch":
            return {
                ("logprobs", "token_logprobs"): lambda x, t: torch.log_softmax(x, -1).gather(1, t[:, None])[:, 0],
            }
        case "norm of the unrounded residual":
            return _unrounded_residual()
        case "positions shifted by one":
            return {("rope", "rotary"): lambda q, k, positions: rotary(q, k, positions + 1)}
        case "query norm skipped":
            return {("q_norm", "rms_norm"): lambda x, weight: x.clone()}
    return {}


# What each mutation does besides exchanging functions.
CONSTANTS = {
    "leaves 8 to 4": lambda contract: _leaves(contract, 4),
    "leaves 8 to 2": lambda contract: _leaves(contract, 2),
    "leaves 8 to 1": lambda contract: _leaves(contract, 1),
    "block of k 64 to 16": lambda contract: _constant(contract, ("qkv", "gate_up", "head"), "BLOCK_K", 16),
    "block of k 64 to 32": lambda contract: _constant(contract, ("qkv", "gate_up", "head"), "BLOCK_K", 32),
    "block of keys 64 to 32": lambda contract: _constant(contract, ("attn",), "KV_BLOCK", 32),
    "block of keys 64 to 16": lambda contract: _constant(contract, ("attn",), "KV_BLOCK", 16),
    "rotary table in fp32": lambda contract: _rotary_table(contract),
}
FUNCTIONS = (
    "torch rms_norm",
    "rms_norm by mean and rsqrt",
    "rms_norm rounds before gamma",
    "silu with torch.exp",
    "silu rounded before the product",
    "linear by torch",
    "head in the model dtype",
    "attention by torch",
    "log_softmax by torch",
    "norm of the unrounded residual",
    "positions shifted by one",
    "query norm skipped",
)
# With two blocks a chain is a tree: the same sums in the same order.
SAME_TREE = ("leaves 8 to 4", "block of k 64 to 32")
MUTATIONS = tuple(name for name in (*CONSTANTS, *FUNCTIONS) if name not in SAME_TREE)


@contextmanager
def apply(contract: str, name: str) -> Iterator[None]:
    """Put one wrong into this process while the context is open. Raises KeyError for a name that is no mutation."""
    if name not in (*CONSTANTS, *FUNCTIONS):
        raise KeyError(name)
    table: Table = importlib.import_module(f"{contract}.regions").BOUND.table
    before = dict(table)
    patches = list(CONSTANTS[name](contract)) if name in CONSTANTS else []
    for one in patches:
        one.start()
    table.update(_table_changes(before, name))
    try:
        yield
    finally:
        table.clear()
        table.update(before)
        for one in patches:
            one.stop()
