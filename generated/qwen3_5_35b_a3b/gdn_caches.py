# SPDX-License-Identifier: Apache-2.0
"""What a sequence keeps between calls of the gated delta rule: the state at the last chunk edge, the open chunk's rows.

Bytes per sequence and value head at K = V = 128: state 65,536, snapshot 32,768, values 16,384, residuals 16,384,
inverse 4,096, decay, gates and betas 256 each = 135,936; keys 16,384 per query/key head. 16 query/key and 32 value
heads: 4,612,096 bytes. An engine may lay a slot's caches one after the other in a page: only what belongs to one slot
is contiguous. Slot 0 is the null slot: never read or written. A slot needs no clearing before reuse, because
nothing older than the sequence's own position is read. Dropping rows of the open chunk is lowering the position.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

CHUNK, BLOCK = 64, 16


class Caches(NamedTuple):
    """Slot-indexed caches; S is held transposed, [V, K]."""

    state: torch.Tensor  # [slots, HV, V, K] fp32: S at the last chunk edge, never rounded
    snapshot: torch.Tensor  # [slots, HV, V, K] bf16: S rounded once
    keys: torch.Tensor  # [slots, H, 64, K] bf16
    values: torch.Tensor  # [slots, HV, 64, V] bf16
    residuals: torch.Tensor  # [slots, HV, 64, V] bf16: R
    inverse: torch.Tensor  # [slots, HV, 64, 2, 16] bf16: D, high and low parts
    decay: torch.Tensor  # [slots, HV, 64] fp32: G
    gates: torch.Tensor  # [slots, HV, 64] fp32: g
    betas: torch.Tensor  # [slots, HV, 64] fp32


class CprCaches(NamedTuple):
    """What chunkwise-parallel recurrence keeps: the chain, the open chunk's running state, and its rows.

    Bytes per sequence and value head at K = V = 128: 65,536 + 65,536 + 16,384 + 768; keys 16,384 per query/key head.
    """

    state: torch.Tensor  # [slots, HV, V, K] fp32: the chain at the last chunk edge
    running: torch.Tensor  # [slots, HV, V, K] fp32: Z of `gdn_cpr_triton` after the open chunk's last row
    decay: torch.Tensor  # [slots, HV, 64] fp32: G
    keys: torch.Tensor  # [slots, H, 64, K] bf16
    values: torch.Tensor  # [slots, HV, 64, V] bf16
    gates: torch.Tensor  # [slots, HV, 64] fp32: g
    betas: torch.Tensor  # [slots, HV, 64] fp32


class States(NamedTuple):
    """All that a chunk kernel without exact rows keeps: the state after the last row, [slots, HV, V, K] fp32."""

    state: torch.Tensor


def strides(held: Caches | CprCaches) -> dict[str, int]:
    """Elements from slot to slot, as constants of a kernel: SCALARS for decay, gates and betas, ROWS for values and
    residuals, which lie alike."""
    found = {"STATE": held.state, "KEYS": held.keys, "ROWS": held.values, "SCALARS": held.gates}
    if isinstance(held, Caches):
        found |= {"SNAPSHOT": held.snapshot, "INVERSE": held.inverse}
    return {name: cache.stride(0) for name, cache in found.items()}


def caches(
    slots: int,
    qk_heads: int,
    v_heads: int,
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> Caches:
    """Uninitialised caches for `slots` sequences, the null slot included; `dtype` is the model dtype."""

    def new(heads: int, *shape: int, like: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty((slots, heads, *shape), dtype=like, device=device)

    return Caches(
        state=new(v_heads, value_dim, key_dim, like=torch.float32),
        snapshot=new(v_heads, value_dim, key_dim),
        keys=new(qk_heads, CHUNK, key_dim),
        values=new(v_heads, CHUNK, value_dim),
        residuals=new(v_heads, CHUNK, value_dim),
        inverse=new(v_heads, CHUNK, 2, BLOCK),
        decay=new(v_heads, CHUNK, like=torch.float32),
        gates=new(v_heads, CHUNK, like=torch.float32),
        betas=new(v_heads, CHUNK, like=torch.float32),
    )


def cpr_caches(
    slots: int,
    qk_heads: int,
    v_heads: int,
    key_dim: int,
    value_dim: int,
    dtype: torch.dtype,
    device: torch.device | str,
) -> CprCaches:
    """The same for chunkwise-parallel recurrence."""
    state = torch.empty((2, slots, v_heads, value_dim, key_dim), dtype=torch.float32, device=device)
    scalars = torch.empty((3, slots, v_heads, CHUNK), dtype=torch.float32, device=device)
    keys = torch.empty((slots, qk_heads, CHUNK, key_dim), dtype=dtype, device=device)
    values = torch.empty((slots, v_heads, CHUNK, value_dim), dtype=dtype, device=device)
    return CprCaches(state[0], state[1], scalars[0], keys, values, scalars[1], scalars[2])
