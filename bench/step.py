"""A decode step and a trainer layer of a dense contract against stock kernels: `python -m bench.step [--quick]`.

Ours are the generated package's sm90 kernels; stock is cuBLAS, vLLM's norms, activation, rotary and FlashAttention 3,
and torch's log-softmax. A step is measured as 4 layers with weights and caches of their own, so that L2 is cold, and as
its ends (embedding, final norm, head, log-probabilities); the step of the whole model is layers / 4 of the one plus the
other. The trainer layer is one forward and backward of 4,096 tokens, stock with torch's flash attention.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from bench import harness

GENERATED = Path(__file__).resolve().parent.parent / "generated"
CONTRACT = "qwen3_8b"
LAYERS = 4
PAGE = 16
COPIED_BYTES_PER_MS = 4.1e9
Tensors = Mapping[str, torch.Tensor]


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

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_dim


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
    )


def kernel(region: str) -> ModuleType:
    return importlib.import_module(f"{CONTRACT}.sm90.kernels.{region}")


def draw(*size: int, scale: float = 1.0, grad: bool = False) -> torch.Tensor:
    return (torch.randn(*size, device="cuda", dtype=torch.bfloat16) * scale).requires_grad_(grad)


def layer_weights(s: Shape, grad: bool = False) -> dict[str, torch.Tensor]:
    def matrix(n: int, k: int) -> torch.Tensor:
        return draw(n, k, scale=k**-0.5, grad=grad)

    found = {
        "qkv": matrix(s.qkv, s.hidden),
        "attn_out": matrix(s.hidden, s.heads * s.head_dim),
        "gate_up": matrix(2 * s.intermediate, s.hidden),
        "down": matrix(s.hidden, s.intermediate),
    }
    for name, width in (
        ("attn_norm", s.hidden),
        ("mlp_norm", s.hidden),
        ("q_norm", s.head_dim),
        ("k_norm", s.head_dim),
    ):
        found[name] = torch.ones(width, device="cuda", dtype=torch.bfloat16, requires_grad=grad)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A decode batch: one row a sequence, every sequence `keys` long, pages in random order."""

    positions: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    table: torch.Tensor
    keys: int


def batch(size: int, keys: int) -> Batch:
    pages = keys // PAGE
    return Batch(
        positions=torch.full((size,), keys - 1, device="cuda"),
        starts=torch.arange(size + 1, device="cuda", dtype=torch.int32),
        lengths=torch.full((size,), keys, device="cuda", dtype=torch.int32),
        table=torch.randperm(size * pages, device="cuda", dtype=torch.int32).view(size, pages),
        keys=keys,
    )


def heads(s: Shape, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = qkv.split((s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim), -1)
    return tuple(x.view(len(qkv), -1, s.head_dim) for x in (q, k, v))  # type: ignore[return-value]


def our_layer(s: Shape, b: Batch, w: Tensors, cache: tuple[torch.Tensor, ...], x: torch.Tensor, r: torch.Tensor) -> Any:
    x, r = kernel("mlp_norm").add_rms_norm(x, r, w["attn_norm"])
    q, k, _ = heads(s, kernel("qkv").matmul(x, w["qkv"]))
    q = kernel("rope").rotary(kernel("q_norm").rms_norm(q, w["q_norm"]), b.positions)
    kernel("rope").rotary(kernel("k_norm").rms_norm(k, w["k_norm"]), b.positions)
    x = kernel("attn").paged_attention(q, *cache, b.table, b.starts, b.lengths, 1)
    x = kernel("attn_out").matmul(x.flatten(1), w["attn_out"])
    x, r = kernel("mlp_norm").add_rms_norm(x, r, w["mlp_norm"])
    x = kernel("act").silu_gate(kernel("gate_up").matmul(x, w["gate_up"]))
    return kernel("down").matmul(x, w["down"]), r


def stock_layer(
    s: Shape, b: Batch, w: Tensors, cache: tuple[torch.Tensor, ...], x: torch.Tensor, r: torch.Tensor
) -> Any:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    native = torch.ops._C
    x, r = x.clone(), r.clone()
    native.fused_add_rms_norm(x, r, w["attn_norm"], s.eps)
    q, k, _ = heads(s, F.linear(x, w["qkv"]))
    normed = []
    for part, weight in ((q, w["q_norm"]), (k, w["k_norm"])):
        out = torch.empty(part.shape, device="cuda", dtype=part.dtype)
        native.rms_norm(out, part.contiguous(), weight, s.eps)
        normed.append(out)
    native.rotary_embedding(b.positions, normed[0].flatten(1), normed[1].flatten(1), s.head_dim, rotary_cache(s), True)
    x = flash_attn_varlen_func(
        normed[0], *cache, max_seqlen_q=1, cu_seqlens_q=b.starts, max_seqlen_k=b.keys, seqused_k=b.lengths,
        block_table=b.table, causal=True, fa_version=3,
    )  # fmt: skip
    x = F.linear(x.flatten(1), w["attn_out"])
    native.fused_add_rms_norm(x, r, w["mlp_norm"], s.eps)
    wide = F.linear(x, w["gate_up"])
    x = torch.empty(len(wide), s.intermediate, device="cuda", dtype=wide.dtype)
    native.silu_and_mul(x, wide)
    return F.linear(x, w["down"]), r


_rotary: dict[int, torch.Tensor] = {}


def rotary_cache(s: Shape) -> torch.Tensor:
    """vLLM's table: cosines and sines of every position side by side, in the model dtype."""
    if s.head_dim not in _rotary:
        angles = torch.outer(torch.arange(40960.0), 1e6 ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
        _rotary[s.head_dim] = torch.cat((angles.cos(), angles.sin()), -1).to("cuda", torch.bfloat16)
    return _rotary[s.head_dim]


def layer_times(s: Shape, size: int, keys: int) -> tuple[float, float]:
    """Milliseconds of `LAYERS` layers with weights and caches of their own, ours and stock."""
    b = batch(size, keys)
    weights = [layer_weights(s) for _ in range(LAYERS)]
    caches = [tuple(draw(size * keys // PAGE, PAGE, s.kv_heads, s.head_dim) for _ in range(2)) for _ in range(LAYERS)]
    first = draw(size, s.hidden)

    def stack(layer: Callable[..., Any]) -> None:
        x, r = first, first
        for w, cache in zip(weights, caches, strict=True):
            x, r = layer(s, b, w, cache, x, r)

    return harness.paired(harness.graph(partial(stack, our_layer)), harness.graph(partial(stack, stock_layer)))


def decode(s: Shape, size: int, keys: int) -> list[harness.Row]:
    times = layer_times(s, size, keys)
    torch.cuda.empty_cache()
    matrices = 2 * (s.qkv * s.hidden + s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.intermediate)
    moved = matrices + 4 * size * keys * s.kv_heads * s.head_dim
    table, ids = draw(s.vocab, s.hidden, scale=s.hidden**-0.5), torch.randint(0, s.vocab, (size,), device="cuda")
    gamma = torch.ones(s.hidden, device="cuda", dtype=torch.bfloat16)

    def our_ends() -> None:
        x = kernel("final_norm").rms_norm(kernel("embed").embedding(ids, table), gamma)
        kernel("logprobs").token_logprobs(kernel("head").matmul(x, table), ids)

    def stock_ends() -> None:
        rows = F.embedding(ids, table)
        x = torch.empty_like(rows)
        torch.ops._C.rms_norm(x, rows, gamma, s.eps)
        torch.log_softmax(F.linear(x, table).float(), -1).gather(1, ids[:, None])

    ends = harness.paired(harness.graph(our_ends), harness.graph(stock_ends))
    name = f"decode, {size} sequences of {keys}"
    whole = [layers * s.layers / LAYERS + end for layers, end in zip(times, ends, strict=True)]
    return [
        harness.row(f"{name}: {LAYERS} layers", times[0], "stock", times[1], LAYERS * moved / COPIED_BYTES_PER_MS, ""),
        harness.row(f"{name}: ends", ends[0], "stock", ends[1], 2 * s.vocab * s.hidden / COPIED_BYTES_PER_MS, ""),
        harness.row(
            f"{name}: the step of {s.layers} layers", whole[0], "stock", whole[1],
            (s.layers * moved + 2 * s.vocab * s.hidden) / COPIED_BYTES_PER_MS, "<= 1.02",
        ),
    ]  # fmt: skip


def train(s: Shape, tokens: int) -> harness.Row:
    w = layer_weights(s, grad=True)
    x, passed = draw(tokens, s.hidden, grad=True), draw(tokens, s.hidden)
    positions = torch.arange(tokens, device="cuda")
    starts = torch.tensor([0, tokens], device="cuda", dtype=torch.int32)
    cos, sin = (t.to("cuda", torch.bfloat16)[:, None] for t in _half(s, tokens))

    def ours() -> None:
        y = kernel("attn_norm").rms_norm(x, w["attn_norm"])
        q, k, v = heads(s, kernel("qkv").matmul(y, w["qkv"]))
        q = kernel("rope").rotary(kernel("q_norm").rms_norm(q, w["q_norm"]), positions)
        k = kernel("rope").rotary(kernel("k_norm").rms_norm(k, w["k_norm"]), positions)
        y = kernel("attn").attention(q, k, v, starts)
        y = kernel("attn_out").matmul(y.flatten(1), w["attn_out"])
        r = kernel("attn_residual").residual_add(y, x)
        y = kernel("mlp_norm").rms_norm(r, w["mlp_norm"])
        y = kernel("act").silu_gate(kernel("gate_up").matmul(y, w["gate_up"]))
        kernel("mlp_residual").residual_add(kernel("down").matmul(y, w["down"]), r).backward(passed)

    def turn(t: torch.Tensor) -> torch.Tensor:
        a, b = t.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def stock() -> None:
        y = F.rms_norm(x, (s.hidden,), w["attn_norm"], s.eps)
        q, k, v = heads(s, F.linear(y, w["qkv"]))
        q = turn(F.rms_norm(q, (s.head_dim,), w["q_norm"], s.eps))
        k = turn(F.rms_norm(k, (s.head_dim,), w["k_norm"], s.eps))
        q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        r = x + F.linear(y[0].transpose(0, 1).flatten(1), w["attn_out"])
        gate, up = F.linear(F.rms_norm(r, (s.hidden,), w["mlp_norm"], s.eps), w["gate_up"]).chunk(2, -1)
        (r + F.linear(F.silu(gate) * up, w["down"])).backward(passed)

    times = harness.paired(ours, stock, rounds=20)
    macs = tokens * (s.qkv * s.hidden + s.heads * s.head_dim * s.hidden + 3 * s.hidden * s.intermediate)
    return harness.row(
        f"trainer layer, {tokens} tokens, forward and backward",
        times[0],
        "stock",
        times[1],
        6 * macs / 7.9e11,
        "<= 1.05",
    )


def _half(s: Shape, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(torch.arange(float(length)), 1e6 ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
    return angles.cos(), angles.sin()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one batch and the trainer layer")
    arguments = parser.parse_args()
    sys.path.insert(0, str(GENERATED))
    import vllm._C_stable_libtorch  # noqa: F401

    s = shape()
    rows = [train(s, 4096)]
    print(*rows[0].values(), flush=True)
    with torch.no_grad():
        for size, keys in [(16, 2048)] if arguments.quick else [(b, k) for b in (1, 16, 128) for k in (2048, 16384)]:
            for found in decode(s, size, keys):
                print(*found.values(), flush=True)
                rows.append(found)
            torch.cuda.empty_cache()
    harness.save("dense_step" + "_quick" * arguments.quick, rows)


if __name__ == "__main__":
    main()
