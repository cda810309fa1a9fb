"""Wrong arithmetic in the hybrid's regions, put into the trainer's table of functions."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional

Function = Callable[..., Any]
CORE = ("gdn_core", "gated_delta_rule")


def _recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, starts: torch.Tensor
) -> torch.Tensor:
    """What decoding natively does: fp32, token by token."""
    from hybrid_reference import gated_delta_rule  # a process has its folder on the path, the tests have not

    group = v.shape[1] // q.shape[1]
    wide = (q.float().repeat_interleave(group, 1), k.float().repeat_interleave(group, 1), v.float(), g, beta)
    rows = [gated_delta_rule(*(x[a:b] for x in wide)) for a, b in pairwise(starts.tolist()) if b > a]
    return torch.cat(rows).to(v.dtype)


def _convolution(x: torch.Tensor, weight: torch.Tensor, bias: None, starts: torch.Tensor) -> torch.Tensor:
    rows = [
        functional.conv1d(functional.pad(x[a:b].T, (3, 0))[None], weight[:, None], groups=x.shape[1])[0].T
        for a, b in pairwise(starts.tolist())
    ]
    return functional.silu(torch.cat(rows)).contiguous()


def _norm_rounded(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    normed = functional.rms_norm(x.float(), x.shape[-1:], weight.float(), 1e-6).to(x.dtype)
    return (normed.float() * functional.silu(gate.float())).to(x.dtype)


def _changes(table: Mapping[tuple[str, str], Function], contract: str) -> dict[str, dict[tuple[str, str], Function]]:
    gates, norm = table["gdn_gates", "gdn_gates"], table["gdn_qk_norm", "l2_norm"]

    def rounded_beta(*arguments: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        g, beta = gates(*arguments)
        return g, beta.bfloat16().float()

    def chunk_form(*arguments: torch.Tensor) -> torch.Tensor:
        form = importlib.import_module(f"{contract}.gdn_backward_torch").chunk_form
        *wide, starts = arguments
        return form(*(x.float() for x in wide), starts, wide[0].shape[2] ** -0.5).to(wide[2].dtype)

    def two_roundings(routed: torch.Tensor, shared: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return routed + (shared.float() * gate[:, None]).to(shared.dtype)

    return {
        "recurrence token by token": {CORE: _recurrence},
        "chunks by torch": {CORE: chunk_form},
        "beta in bf16": {("gdn_gates", "gdn_gates"): rounded_beta},
        "convolution by torch": {("gdn_conv", "causal_conv"): _convolution},
        "keys of length one and a bit": {("gdn_qk_norm", "l2_norm"): lambda x: (norm(x).float() * 1.004).to(x.dtype)},
        "norm rounded before the gate": {("gdn_norm", "gated_rms_norm"): _norm_rounded},
        "gate rounded before the product": {
            ("attn_gate", "sigmoid_gate"): lambda x, gate: x * gate.sigmoid(),
        },
        "shared expert added in two roundings": {("shared_combine", "shared_combine"): two_roundings},
        "shared gate in bf16": {
            ("shared_gate", "shared_gate"): lambda x, weight: (x @ weight.T)[:, 0].sigmoid().float(),
        },
    }


MUTATIONS = (
    "recurrence token by token",
    "chunks by torch",
    "beta in bf16",
    "convolution by torch",
    "keys of length one and a bit",
    "norm rounded before the gate",
    "gate rounded before the product",
    "shared expert added in two roundings",
    "shared gate in bf16",
)


@contextmanager
def apply(contract: str, name: str) -> Iterator[None]:
    """Put one wrong into this process while the context is open. Raises KeyError for a name that is no mutation."""
    table = importlib.import_module(f"{contract}.regions").BOUND.table
    before = dict(table)
    table.update(_changes(before, contract)[name])
    try:
        yield
    finally:
        table.update(before)
