# SPDX-License-Identifier: Apache-2.0
"""Which functions of kernel files adapters may call, as what operator: arguments, results, shapes for a compiler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from . import package


def _same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


def _contiguous(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _columns(x: torch.Tensor, weight: torch.Tensor, region: str) -> torch.Tensor:
    out = package.load().contract["regions"][region]["attributes"]["out"]
    return x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32 if out == "fp32" else x.dtype)


def _fp32_columns(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[0], dtype=torch.float32)


def _first(parts: torch.Tensor, *_: Any) -> torch.Tensor:
    return parts.new_empty(parts.shape[1:], dtype=package.load().dtype)


def _routed(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    slots = x.shape[0], package.load().model["num_experts_per_tok"]
    return x.new_empty(slots, dtype=torch.int32), x.new_empty(slots, dtype=torch.float32)


def _slot_rows(x: torch.Tensor, weight: torch.Tensor, order: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(order.shape[0], weight.shape[1])


def _slot_sums(parts: torch.Tensor, *_: Any) -> torch.Tensor:
    return parts.new_empty(parts.shape[-3], parts.shape[-1], dtype=package.load().dtype)


def _fp32_rows(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape[0], dtype=torch.float32)


def _untraceable(*_: Any) -> torch.Tensor:
    raise RuntimeError("leaf sums of a vocabulary shard cannot be traced: their number is a constant of the kernel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """`function` is the name in the kernel file; `whole` says that one call is one run of the region, not a part.

    An operator of two results and two names runs two regions in one kernel: the named one, and `added`, which made the
    second result. One without `arguments` keeps state of its own between calls: it is no operator of torch's and is
    called by `run`, inside an operator of the framework that a compiler does not look into.
    """

    function: str
    arguments: str = ""
    fake: Callable[..., Any] | None = None
    result: str = "Tensor"
    keywords: tuple[str, ...] = ()
    whole: bool = True


OPERATORS = {
    "embedding": Operator(
        function="embedding",
        arguments="Tensor ids, Tensor weight, int start",
        keywords=("start",),
        fake=lambda ids, weight, *_: weight.new_empty(ids.shape[0], weight.shape[1]),
    ),
    "select": Operator(function="combine", arguments="Tensor parts", fake=_first, whole=False),
    "rms_norm": Operator(function="rms_norm", arguments="Tensor x, Tensor weight", fake=_contiguous),
    "add_rms_norm": Operator(
        function="add_rms_norm",
        arguments="Tensor x, Tensor residual, Tensor weight, str added",
        result="(Tensor, Tensor)",
        fake=lambda x, residual, *_: (torch.empty_like(x), torch.empty_like(residual)),
    ),
    "residual_add": Operator(function="residual_add", arguments="Tensor x, Tensor residual", fake=_same),
    "rotary": Operator(
        function="rotary",
        arguments="Tensor q, Tensor k, Tensor positions",
        result="(Tensor, Tensor)",
        fake=lambda q, k, *_: (q.new_empty(q.shape), k.new_empty(k.shape)),
    ),
    "silu_gate": Operator(
        function="silu_gate",
        arguments="Tensor gate_up",
        fake=lambda x, *_: x.new_empty(x.shape[0], x.shape[1] // 2),
    ),
    "matmul": Operator(function="matmul", arguments="Tensor x, Tensor weight", fake=_columns),
    "partial": Operator(function="partial", arguments="Tensor x, Tensor weight", fake=_fp32_columns, whole=False),
    "combine": Operator(function="combine", arguments="Tensor parts", fake=_first),
    "router": Operator(function="router", arguments="Tensor x, Tensor weight", result="(Tensor, Tensor)", fake=_routed),
    "dispatch": Operator(
        function="dispatch",
        arguments="Tensor experts, int count",
        result="(Tensor, Tensor)",
        fake=lambda experts, count, *_: (experts.new_empty(experts.numel()), experts.new_empty(count + 1)),
        whole=False,
    ),
    "expert_gate_up": Operator(
        function="expert_gate_up", arguments="Tensor x, Tensor weight, Tensor order, Tensor offsets", fake=_slot_rows
    ),
    "expert_act": Operator(
        function="expert_act",
        arguments="Tensor gate_up, Tensor weights, Tensor order",
        fake=lambda x, *_: x.new_empty(x.shape[0], x.shape[1] // 2),
    ),
    "expert_down": Operator(
        function="expert_down",
        arguments="Tensor hidden, Tensor weight, Tensor order, Tensor offsets",
        fake=lambda *arguments: _slot_rows(*arguments).float(),
    ),
    "expert_combine": Operator(function="expert_combine", arguments="Tensor rows, Tensor weights", fake=_slot_sums),
    "combine_slots": Operator(function="combine", arguments="Tensor parts, Tensor weights", fake=_slot_sums),
    "attention": Operator(
        function="attention", arguments="Tensor q, Tensor k, Tensor v, Tensor cu_seqlens", fake=_same
    ),
    "paged_attention": Operator(
        function="paged_attention",
        arguments="Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor query_start, Tensor seq_lens, "
        "int max_query",
        fake=_same,
    ),
    "log_softmax": Operator(function="log_softmax", arguments="Tensor logits", fake=_same),
    "token_logprobs": Operator(function="token_logprobs", arguments="Tensor logits, Tensor targets", fake=_fp32_rows),
    "shard_sums": Operator(
        function="shard_sums",
        arguments="Tensor logits, int start",
        keywords=("start",),
        fake=_untraceable,
        whole=False,
    ),
    "shard_target": Operator(
        function="shard_target",
        arguments="Tensor logits, Tensor targets, int start",
        keywords=("start",),
        fake=_fp32_rows,
        whole=False,
    ),
    "finish": Operator(function="finish", arguments="Tensor sums, Tensor target_logit", fake=_fp32_rows),
    "normaliser": Operator(
        function="normaliser",
        arguments="Tensor sums",
        fake=lambda sums, *_: sums.new_empty(sums.shape[0], 2),
        whole=False,
    ),
    "shard_gradient": Operator(
        function="shard_gradient",
        arguments="Tensor logits, Tensor targets, Tensor normalisers, Tensor gradient, int start",
        keywords=("start",),
        fake=_same,
        whole=False,
    ),
    "sigmoid_gate": Operator(function="sigmoid_gate", arguments="Tensor x, Tensor gate", fake=_same),
    "l2_norm": Operator(function="l2_norm", arguments="Tensor x", fake=_contiguous),
    "gdn_gates": Operator(
        function="gdn_gates",
        arguments="Tensor a, Tensor b, Tensor a_log, Tensor dt_bias",
        result="(Tensor, Tensor)",
        fake=lambda a, *_: (a.new_empty(a.shape, dtype=torch.float32), a.new_empty(a.shape, dtype=torch.float32)),
    ),
    "gated_rms_norm": Operator(
        function="gated_rms_norm", arguments="Tensor x, Tensor gate, Tensor weight", fake=_contiguous
    ),
    "causal_conv": Operator(
        function="causal_conv", arguments="Tensor x, Tensor weight, Tensor? bias, Tensor cu_seqlens", fake=_contiguous
    ),
    "causal_conv_extend": Operator(function="causal_conv_extend"),
    "causal_conv_step": Operator(function="causal_conv_step"),
    "gated_delta_rule": Operator(
        function="gated_delta_rule",
        arguments="Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor cu_seqlens",
        fake=lambda q, k, v, *_: torch.empty_like(v),
    ),
    "gated_delta_extend": Operator(function="gated_delta_extend", keywords=("aligned",)),
    "gated_delta_step": Operator(function="gated_delta_step"),
    # The sequences with one new row in a batch that has longer ones too, which `gated_delta_extend` runs.
    "gated_delta_step_beside": Operator(function="gated_delta_step", whole=False),
    "shared_gate": Operator(function="shared_gate", arguments="Tensor x, Tensor weight", fake=_fp32_rows),
    "shared_combine": Operator(
        function="shared_combine", arguments="Tensor routed, Tensor shared, Tensor gate", fake=_same
    ),
}
