# SPDX-License-Identifier: Apache-2.0
"""What the bound regions compute, on inputs that both sides make alike: a fingerprint of behaviour, not of text.

It moves when a kernel is replaced, when a compiler or a variable changes its bits, or when a table is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from . import package
from .bits import fingerprint, mix
from .regions import BOUND

ROWS = 5


def _values(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Numbers in [-2, 2) from integer arithmetic alone, so that every machine makes the same."""
    count = torch.Size(shape).numel()
    words = mix(torch.arange(1, count + 1, dtype=torch.int64, device=device) + (seed << 40))
    return ((words >> 40).to(torch.float32) / 4194304.0).view(shape).to(dtype)


def _arguments(op: str, a: Mapping[str, Any], dtype: torch.dtype, device: str) -> tuple[str, tuple[Any, ...]]:
    """The function to call and its arguments for a region of `op` with attributes `a`."""

    def values(*shape: int, seed: int = 1, dtype: torch.dtype = dtype) -> torch.Tensor:
        return _values(*shape, dtype=dtype, device=device, seed=seed)

    def integers(*items: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.tensor(items, dtype=dtype, device=device)

    match op:
        case "embedding":
            return "embedding", (integers(0, 1, a["vocab"] - 1), values(a["vocab"], a["width"]))
        case "rms_norm":
            return "rms_norm", (values(ROWS, a["width"]), values(a["width"], seed=2))
        case "residual_add":
            return "residual_add", (values(ROWS, a["width"]), values(ROWS, a["width"], seed=2))
        case "matmul":
            return "matmul", (values(ROWS, a["k"]), values(a["n"], a["k"], seed=2))
        case "silu_gate":
            return "silu_gate", (values(ROWS, 2 * a["width"]),)
        case "rotary":
            places = integers(0, 1, 77, a["max_positions"] // 2, a["max_positions"] - 1)
            return "rotary", (values(ROWS, 2, a["head_dim"]), values(ROWS, 1, a["head_dim"], seed=2), places)
        case "attention":
            q, k, v = (
                values(70, a[h], a["head_dim"], seed=s) for s, h in enumerate(("q_heads", "kv_heads", "kv_heads"))
            )
            return "attention", (q, k, v, integers(0, 1, 70, dtype=torch.int32))
        case "router":
            return "router", (values(ROWS, a["hidden"]), values(a["experts"], a["hidden"], seed=2))
        case "expert_gate_up" | "expert_down" | "expert_act" | "expert_combine":
            return op, _expert_arguments(op, a, values, integers)
        case "causal_conv" | "gdn_gates" | "gated_delta_rule" | "l2_norm" | "gated_rms_norm":
            return op, _gdn_arguments(op, a, values, integers)
        case "sigmoid_gate":
            return "sigmoid_gate", (values(ROWS, a["width"]), values(ROWS, a["width"], seed=2))
        case "shared_gate":
            return "shared_gate", (values(ROWS, a["hidden"]), values(1, a["hidden"], seed=2))
        case "shared_combine":
            gate = values(ROWS, seed=3, dtype=torch.float32)
            return "shared_combine", (values(ROWS, a["hidden"]), values(ROWS, a["hidden"], seed=2), gate)
        case "log_softmax":
            return "log_softmax", (values(ROWS, a["vocab"], dtype=torch.float32),)
    return "", ()


def _expert_arguments(op: str, a: Mapping[str, Any], values: Any, integers: Any) -> tuple[Any, ...]:
    """Every token's slots in order, the first three at one expert and the others at the next."""
    slots = ROWS * a["top_k"]
    order = integers(*range(slots), dtype=torch.int32)
    weights = values(ROWS, a["top_k"], seed=3, dtype=torch.float32)
    offsets = integers(0, 3, slots, dtype=torch.int32)
    match op:
        case "expert_gate_up":
            return values(ROWS, a["hidden"]), values(2, 2 * a["width"], a["hidden"], seed=2), order, offsets
        case "expert_act":
            return values(slots, 2 * a["width"]), weights, order
        case "expert_down":
            return values(slots, a["width"]), values(2, a["hidden"], a["width"], seed=2), order, offsets
    return values(ROWS, a["top_k"], a["hidden"], dtype=torch.float32), weights


def _gdn_arguments(op: str, a: Mapping[str, Any], values: Any, integers: Any) -> tuple[Any, ...]:
    """A sequence of one row, and one that ends within its second chunk; keys of about unit length, decays above 0.6."""
    rows, starts = 71, integers(0, 1, 71, dtype=torch.int32)
    match op:
        case "causal_conv":
            return values(rows, a["channels"]), values(a["channels"], a["width"], seed=2), None, starts
        case "gdn_gates":
            vectors = (values(a["v_heads"], seed=s, dtype=torch.float32) for s in (3, 4))
            return values(rows, a["v_heads"]), values(rows, a["v_heads"], seed=2), *vectors
        case "gated_delta_rule":
            q, k = (values(rows, a["qk_heads"], a["key_dim"], seed=s) * a["key_dim"] ** -0.5 for s in (1, 2))
            v = values(rows, a["v_heads"], a["value_dim"], seed=3)
            g, beta = (values(rows, a["v_heads"], seed=s, dtype=torch.float32) for s in (4, 5))
            return q, k, v, g.abs() * -0.25, (beta + 2) * 0.25, starts
        case "l2_norm":
            return (values(rows, 2, a["width"]),)
    return values(rows, 2, a["width"]), values(rows, 2, a["width"], seed=2), values(a["width"], seed=3)


@torch.no_grad()
def probe() -> dict[str, str]:
    """The fingerprint of every region's result on its probe. Regions of an op without a probe here are left out."""
    contract = package.load()
    device = "cuda" if BOUND.target != "cpu" else "cpu"
    found = {}
    for region, described in contract.contract["regions"].items():
        function, arguments = _arguments(described["op"], described["attributes"], contract.dtype, device)
        if function:
            result = BOUND.table[region, function](*arguments)
            parts = result if isinstance(result, tuple) else (result,)
            found[region] = "".join(f"{fingerprint(part):016x}" for part in parts)
    return found
