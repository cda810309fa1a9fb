# SPDX-License-Identifier: Apache-2.0
"""What every gated delta rule launcher checks of its arguments; raises ValueError with one sentence."""

from __future__ import annotations

import torch

from .launcher import require


def check_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    dims: tuple[int, int, int, int], sizes: tuple[int, ...], dtype: torch.dtype,
) -> None:  # fmt: skip
    """q, k [T,H,K], v [T,HV,V] of the model dtype, g and beta [T,HV] fp32, all contiguous.

    dims = (H, HV, K, V); a rank may hold the heads of one of `sizes` equal parts.
    """
    heads, v_heads, key_dim, value_dim = dims
    tokens = q.shape[0]
    shards = {heads // size: v_heads // size for size in sizes if heads % size == 0}
    require(q.dim() == 3 and q.shape[1] in shards, f"q must be [T, heads, {key_dim}] with heads in {sorted(shards)}")
    heads, v_heads = q.shape[1], shards[q.shape[1]]
    require(q.shape == k.shape == (tokens, heads, key_dim), f"q and k must be [T, {heads}, {key_dim}]")
    require(v.shape == (tokens, v_heads, value_dim), f"v must be [T, {v_heads}, {value_dim}] with the T of q")
    require(g.shape == beta.shape == (tokens, v_heads), f"g and beta must be [T, {v_heads}] with the T of q")
    require(q.dtype == k.dtype == v.dtype == dtype, f"q, k and v must be {dtype}")
    require(g.dtype == beta.dtype == torch.float32, "g and beta must be torch.float32: a rounded beta moves bits")
    require(all(x.is_contiguous() for x in (q, k, v, g, beta)), "q, k, v, g and beta must be contiguous")
    require(not any(x.data_ptr() % 16 for x in (q, k, v)), "q, k and v must be aligned to 16 bytes")


def check_cu_seqlens(cu_seqlens: torch.Tensor, tokens: int) -> None:
    """int32 [B+1]. On the CPU the values are checked too: they start at 0, never fall and end at T."""
    require(cu_seqlens.dim() == 1 and cu_seqlens.shape[0] >= 1, "cu_seqlens must be [B+1]")
    require(cu_seqlens.dtype == torch.int32 and cu_seqlens.is_contiguous(), "cu_seqlens must be contiguous torch.int32")
    if not cu_seqlens.is_cuda:
        require(int(cu_seqlens[0]) == 0, "cu_seqlens must start at 0")
        require(bool((cu_seqlens[1:] >= cu_seqlens[:-1]).all()), "cu_seqlens must not fall")
        require(int(cu_seqlens[-1]) == tokens, f"cu_seqlens must end at T = {tokens}")


def check_slots(slots: torch.Tensor, positions: torch.Tensor, lanes: int) -> None:
    """slots and positions int32 [B]."""
    require(slots.shape == positions.shape == (lanes,), f"slots and positions must be [{lanes}]")
    require(slots.dtype == positions.dtype == torch.int32, "slots and positions must be torch.int32")
    require(slots.is_contiguous() and positions.is_contiguous(), "slots and positions must be contiguous")
