# SPDX-License-Identifier: Apache-2.0
"""Every region behind one opaque torch operator for each op: eager and compiled code run the very same function.

`ops.rms_norm(x, weight, "attn_norm")` runs the function `rms_norm` of the kernel file of the region `attn_norm`. Inside
the operator the ledger counts, and a tap, when set, sees each result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from . import package
from .ledger import Ledger

Tap = Callable[[str, str, list[Any], Any], None]


@dataclass(slots=True, kw_only=True)
class Bound:
    """What is bound in this process: `table[region, function]` is the function an operator calls."""

    side: str = ""
    target: str = ""
    table: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    tap: Tap | None = None
    depth: int = 0


BOUND = Bound()


def _same(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x)


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

    An operator of two results runs two regions in one kernel: the named one, and `added`, which made the second result.
    """

    function: str
    arguments: str
    fake: Callable[..., Any]
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
    "rms_norm": Operator(function="rms_norm", arguments="Tensor x, Tensor weight", fake=_same),
    "add_rms_norm": Operator(
        function="add_rms_norm",
        arguments="Tensor x, Tensor residual, Tensor weight, str added",
        result="(Tensor, Tensor)",
        fake=lambda x, residual, *_: (torch.empty_like(x), torch.empty_like(residual)),
    ),
    "residual_add": Operator(function="residual_add", arguments="Tensor x, Tensor residual", fake=_same),
    "rotary": Operator(function="rotary", arguments="Tensor x, Tensor positions", fake=_same),
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
}


def _run(name: str, *arguments: Any) -> Any:
    operator = OPERATORS[name]
    values = [a for a in arguments if not isinstance(a, str)]
    names = [a for a in reversed(arguments) if isinstance(a, str)]  # the region that runs, then one that it contains
    BOUND.depth += 1
    try:
        named = {key: values.pop() for key in reversed(operator.keywords)}
        result = BOUND.table[names[0], operator.function](*values, **named)
    finally:
        BOUND.depth -= 1
    for region, part in zip(names, result if len(names) > 1 else (result,), strict=True):
        if operator.whole:
            BOUND.ledger.ran(region)
        if BOUND.tap is not None:
            BOUND.tap(region, name, values, part)
    return result


def _differentiable(name: str, *arguments: Any) -> Any:
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return _run(name, *arguments)  # the kernel file's autograd function records itself
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(ops, name)(*arguments)


_LIBRARY = torch.library.Library(f"isoexec_{package.NAME}", "DEF")
for _name, _operator in OPERATORS.items():
    _LIBRARY.define(f"{_name}({_operator.arguments}, str region) -> {_operator.result}")
    _LIBRARY.impl(_name, partial(_run, _name), "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, partial(_differentiable, _name), "Autograd")
    torch.library.register_fake(f"isoexec_{package.NAME}::{_name}", _operator.fake, lib=_LIBRARY)
ops = getattr(torch.ops, f"isoexec_{package.NAME}")


def bind(side: str, target: str) -> None:
    """Fill the table for one side. Raises ValueError when its cases would run a region from different files."""
    contract = package.load()
    BOUND.side, BOUND.target = side, target
    for region in contract.contract["regions"]:
        modules = {contract.kernel(target, region, case) for case in contract.cases(side)}
        if len(modules) != 1:
            raise ValueError(f"{side} runs {region} from {len(modules)} kernel files, this adapter can bind one")
        (module,) = modules
        for operator in OPERATORS.values():
            if hasattr(module, operator.function):
                BOUND.table[region, operator.function] = getattr(module, operator.function)


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Show every result of every region to `tap(region, operator, arguments, result)` while the context is open."""
    before, BOUND.tap = BOUND.tap, tap
    try:
        yield
    finally:
        BOUND.tap = before
