"""Calls that launch every kernel of ours in a step and a trainer layer, for compilation on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch

from bench.dense_layer import PAGE, Tensor, draw, heads, kernel, our_training, ours, shape, weights


def both_ways(function: Callable[..., Tensor | tuple[Tensor, ...]], *tensors: Tensor) -> None:
    """Forward and backward of a region of tensors that all have gradients."""
    with torch.enable_grad():
        out = function(*(x.detach().requires_grad_() for x in tensors))
        results = out if isinstance(out, tuple) else (out,)
        torch.autograd.backward(results, [torch.empty_like(x) for x in results])


def decoding(size: int, lengths: Iterable[int]) -> Iterator[Callable[[], object]]:
    """The kernels of a decode step of `size` sequences of any of these lengths."""
    s, w = shape(), weights("cpu")
    for region, (_, k) in s.matrices.items():
        yield partial(kernel(region).matmul, draw(size, k, device="cpu"), w[region])
    q, k, _ = heads(draw(size, s.matrices["qkv"][0], device="cpu"))
    rows, integers = draw(size, s.hidden, device="cpu"), torch.zeros(size, dtype=torch.int32)
    yield partial(ours().turn, q, k, w, integers.long())
    yield partial(ours().add_norm, rows, rows, w["attn_norm"])
    yield partial(ours().act, draw(size, 2 * s.intermediate, device="cpu"))
    cache, starts = draw(2, 1, PAGE, s.kv_heads, s.head_dim, device="cpu"), torch.zeros(size + 1, dtype=torch.int32)
    for keys in lengths:
        table = torch.zeros(size, keys // PAGE, dtype=torch.int32)
        yield partial(ours().attend, q.contiguous(), (cache[0], cache[1]), table, starts, integers, keys)
    table = draw(s.vocab, s.hidden, device="cpu")
    yield partial(kernel("embed").embedding, integers.long(), table)
    yield partial(kernel("final_norm").rms_norm, rows, w["attn_norm"])
    yield partial(kernel("head").matmul, rows, table)
    yield partial(kernel("logprobs").token_logprobs, torch.empty(size, s.vocab), integers.long())


def training(tokens: int) -> Iterator[Callable[[], object]]:
    """The kernels of a trainer layer but those of the products' gradients, which are cuBLAS."""
    s, w = shape(), weights("cpu")
    for region, (_, k) in s.matrices.items():
        yield partial(kernel(region).matmul, draw(tokens, k, device="cpu"), w[region])
    qkv, rows = heads(draw(tokens, s.matrices["qkv"][0], device="cpu")), draw(tokens, s.hidden, device="cpu")
    positions, starts = torch.arange(tokens), torch.tensor([0, tokens], dtype=torch.int32)
    yield partial(both_ways, lambda *x: our_training().attend(*x, starts), *(x.contiguous() for x in qkv[:2]), qkv[2])
    yield partial(both_ways, kernel("act").silu_gate, draw(tokens, 2 * s.intermediate, device="cpu"))
    yield partial(both_ways, kernel("attn_residual").residual_add, rows, rows)
    yield partial(both_ways, kernel("mlp_norm").rms_norm, rows, w["mlp_norm"])
    for x, name in zip(qkv, ("q_norm", "k_norm"), strict=False):
        yield partial(both_ways, kernel(name).rms_norm, x, w[name])
    yield partial(both_ways, lambda q, k: kernel("rope").rotary(q, k, positions), *(x.contiguous() for x in qkv[:2]))
