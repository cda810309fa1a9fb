"""The regions of a dense layer by stock kernels.

A decode step: cuBLAS, vLLM's norms, activation and rotary, and its FlashAttention 3. Training: cuBLAS, torch's norms
and attention, with rotary and activation fused by torch.compile.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812

from bench.dense_layer import Pair, Regions, Tensor, Tensors, shape


def stock_add_norm(x: Tensor, r: Tensor, weight: Tensor) -> Pair:
    torch.ops._C.fused_add_rms_norm(x, r, weight, shape().eps)  # in place
    return x, r


def stock_turn(q: Tensor, k: Tensor, w: Tensors, positions: Tensor) -> Pair:
    normed = []
    for x, weight in ((q, w["q_norm"]), (k, w["k_norm"])):
        normed.append(torch.empty(x.shape, device=x.device, dtype=x.dtype))
        torch.ops._C.rms_norm(normed[-1], x, weight, shape().eps)
    flat = (x.flatten(1) for x in normed)
    torch.ops._C.rotary_embedding(positions, *flat, shape().head_dim, rotary_cache(), True)
    return normed[0], normed[1]


def stock_paged(q: Tensor, cache: Pair, table: Tensor, starts: Tensor, lengths: Tensor, keys: int) -> Tensor:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(
        q, *cache, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=keys, seqused_k=lengths, block_table=table,
        causal=True, fa_version=3,
    )  # fmt: skip


def stock_act(x: Tensor) -> Tensor:
    out = torch.empty(len(x), x.shape[1] // 2, device=x.device, dtype=x.dtype)
    torch.ops._C.silu_and_mul(out, x)
    return out


def stock() -> Regions:
    """Regions of a decode step; the norm works in place."""
    products = dict.fromkeys(shape().matrices, F.linear)
    return Regions(add_norm=stock_add_norm, turn=stock_turn, attend=stock_paged, act=stock_act, **products)


def angles(length: int) -> Pair:
    """Cosines and sines of every position, in the model dtype."""
    s = shape()
    turns = torch.outer(torch.arange(float(length)), s.theta ** (-torch.arange(0, s.head_dim, 2) / s.head_dim))
    return turns.cos().to("cuda", torch.bfloat16), turns.sin().to("cuda", torch.bfloat16)


@cache
def rotary_cache() -> Tensor:
    """vLLM's table: cosines and sines of every position side by side."""
    return torch.cat(angles(40960), -1)


def stock_sum_norm(x: Tensor, r: Tensor, weight: Tensor) -> Pair:
    r = x + r
    return F.rms_norm(r, weight.shape, weight, shape().eps), r


def stock_training(backend: str, tokens: int) -> Regions:
    """Regions of a trainer layer with one of torch's attention backends."""
    cos, sin = (x[:, None] for x in angles(tokens))

    @torch.compile
    def rotary(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    @torch.compile
    def act(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return F.silu(gate) * up

    def turn(q: Tensor, k: Tensor, w: Tensors, positions: Tensor) -> Pair:
        q = rotary(F.rms_norm(q, q.shape[2:], w["q_norm"], shape().eps))
        return q, rotary(F.rms_norm(k, k.shape[2:], w["k_norm"], shape().eps))

    def attend(q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
            q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    products = dict.fromkeys(shape().matrices, F.linear)
    return Regions(add_norm=stock_sum_norm, turn=turn, attend=attend, act=act, **products)
