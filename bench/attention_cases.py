"""Calls of the attention kernels that benchmarks time, with their inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

PAGE = 16
Shape = tuple[int, int, int]  # query heads, key heads, head_dim
QWEN3_8B: Shape = (32, 8, 128)
SMALL: Shape = (32, 8, 64)
QWEN3_5: Shape = (16, 2, 256)


@cache
def module(shape: Shape, launch: tuple[tuple[str, Any], ...] | None = None) -> ModuleType:
    """The rendered kernels for these heads: the recommended launch, or one bucket with these parameters."""
    from tests.support.rendering import render_kernel

    q_heads, kv_heads, head_dim = shape
    attributes = {
        "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5, "causal": True,
    }  # fmt: skip
    chosen = None if launch is None else ((None, dict(launch)),)
    return render_kernel("attention_blocks", "sm90", attributes, launch=chosen)


def normal(*size: int, device: str) -> Any:
    """Fresh bf16 draws; nothing is drawn where kernels are only compiled."""
    import torch

    make = torch.empty if device == "cpu" else torch.randn
    return make(*size, device=device, dtype=torch.bfloat16)


def prefill_inputs(shape: Shape, lengths: tuple[int, ...], device: str) -> tuple[Any, ...]:
    """q, k, v, cu_seqlens of packed sequences."""
    import torch

    q_heads, kv_heads, head_dim = shape
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    sizes = ((sum(lengths), heads, head_dim) for heads in (q_heads, kv_heads, kv_heads))
    return *(normal(*size, device=device) for size in sizes), bounds


def paged_inputs(shape: Shape, batch: int, rows: int, keys: int, device: str) -> tuple[Any, ...]:
    """Arguments of `paged_attention`: `rows` rows of `batch` sequences against `keys` keys in shuffled pages."""
    import torch

    q_heads, kv_heads, head_dim = shape
    wide = -(-keys // PAGE)
    pages = batch * wide if device != "cpu" else 2
    cache_k, cache_v = normal(2, pages, PAGE, kv_heads, head_dim, device=device)
    table = torch.randperm(pages, device=device, dtype=torch.int32).reshape(batch, wide) if device != "cpu" else (
        torch.zeros(batch, wide, dtype=torch.int32)
    )  # fmt: skip
    start = torch.arange(batch + 1, device=device, dtype=torch.int32) * rows
    lengths = torch.full((batch,), keys, device=device, dtype=torch.int32)
    return normal(batch * rows, q_heads, head_dim, device=device), cache_k, cache_v, table, start, lengths, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: `prefill` (packed `lengths`), `train` (with its backward) or `paged` (`lengths`: batch, rows, keys)."""

    kind: str
    shape: Shape
    lengths: tuple[int, ...]
    launch: tuple[tuple[str, Any], ...] | None = None

    def inputs(self, device: str) -> tuple[Any, ...]:
        if self.kind == "paged":
            return paged_inputs(self.shape, *self.lengths, device)
        return prefill_inputs(self.shape, self.lengths, device)

    def call(self, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        kernels = module(self.shape, self.launch)
        if self.kind == "paged":
            return lambda: kernels.paged_attention(*inputs)
        if self.kind == "prefill":
            return lambda: kernels.attention(*inputs)
        return step(lambda q, k, v: kernels.attention(q, k, v, inputs[3]), inputs[:3])

    def compiled(self) -> None:
        """The call on CPU tensors, for `compile_ahead`."""
        self.call(self.inputs("cpu"))()


def step(attention: Callable[..., Any], tensors: tuple[Any, ...]) -> Callable[[], Any]:
    """Forward and backward of `attention` over `tensors` for one fixed gradient."""
    import torch

    leaves = [x.detach().requires_grad_() for x in tensors]
    gradient = torch.ones_like(leaves[0])
    return lambda: torch.autograd.grad(attention(*leaves), leaves, gradient)
