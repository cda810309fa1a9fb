"""What a rank of a layout launches out of a generated package: calls on uninitialised CPU tensors, to compile ahead."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from isoexec_compiler.ops.gated_delta_rule import launchers

# What a rank of tensor parallelism holds a share of; of the experts also each owner.
SHARED = {
    "attention": ("q_heads", "kv_heads"),
    "silu_gate": ("width",),
    "sigmoid_gate": ("width",),
    "causal_conv": ("channels",),
    "gdn_gates": ("v_heads",),
    "gated_delta_rule": ("qk_heads", "v_heads"),
    "embedding": ("vocab",),
    "expert_gate_up": ("width",),
    "expert_act": ("width",),
    "expert_down": ("width",),
}
Call = Callable[[], object]


def calls(
    generated: Path, contract: str, rows: Iterable[int], *, tp: int = 1, owners: int = 1, widths: int = 1
) -> Iterator[Call]:
    """One for each number of rows and region; rows of experts are the slots of so many tokens.

    `tp` ranks share the dense regions, `owners` the experts, `widths` their width. The package is imported from the
    folder `generated`.
    """
    sys.path.insert(0, str(generated.resolve()))
    document = json.loads((generated / contract / "contract.json").read_text())
    modules = document["kernels"]["sm90"]["trainer_score"]
    for region, entry in document["regions"].items():
        module = importlib.import_module(f"{contract}.sm90.kernels.{modules[region]}")
        attributes, op = dict(entry["attributes"]), entry["op"]
        for name in SHARED.get(op, ()):
            attributes[name] //= widths if op.startswith("expert") else tp
        if "experts" in attributes and op != "router":
            attributes["experts"] //= owners
        for count in rows:
            slots = count * attributes["top_k"] if op in ("expert_gate_up", "expert_act", "expert_down") else count
            given = module, op, attributes, slots, tp, widths, owners, document["model"]["config"]
            yield partial(_launch, *given)


def _launch(*given: Any) -> None:
    """All of a region: the tensors, some of them large, exist only here."""
    for call in _of_region(*given):
        call()


def _of_region(
    module: ModuleType,
    op: str,
    attributes: Mapping[str, Any],
    rows: int,
    tp: int,
    widths: int,
    owners: int,
    model: Mapping[str, Any],
) -> Iterator[Call]:
    bf16 = partial(torch.empty, dtype=torch.bfloat16)
    integers = partial(torch.zeros, dtype=torch.int64)
    match op:
        case "matmul":
            n, k = attributes["n"], attributes["k"]
            if attributes["split"] == "rows" and tp > 1:
                yield partial(module.partial, bf16(rows, k // tp), bf16(n, k // tp))
                yield partial(module.combine, torch.empty(tp, rows, n))
            else:
                shard = n // tp if attributes["split"] == "columns" else n
                yield partial(module.matmul, bf16(rows, k), bf16(shard, k))
        case "rotary":
            held = (max(1, model[heads] // tp) for heads in ("num_attention_heads", "num_key_value_heads"))
            q, k = (bf16(rows, heads, attributes["head_dim"]) for heads in held)
            yield partial(module.rotary, q, k, integers(rows))
        case "log_softmax":
            logits = torch.empty(rows, attributes["padded_vocab"])
            yield partial(module.token_logprobs, logits, integers(rows))
            yield partial(module.log_softmax, logits)
            if tp > 1:
                shard = logits.new_empty(rows, attributes["padded_vocab"] // tp)
                yield partial(module.shard_sums, shard, start=0)
                yield partial(module.shard_target, shard, integers(rows), start=0)
        case "embedding":
            yield partial(module.embedding, integers(rows), bf16(attributes["vocab"], attributes["width"]))
        case "gated_delta_rule":
            q, k = (bf16(rows, attributes["qk_heads"], attributes["key_dim"]) for _ in range(2))
            v = bf16(rows, attributes["v_heads"], attributes["value_dim"])
            g, beta = (torch.empty(rows, attributes["v_heads"]) for _ in range(2))
            yield partial(module.gated_delta_rule, q, k, v, g, beta, torch.tensor([0, rows], dtype=torch.int32))
            known = launchers(module, attributes, torch.bfloat16, rows, "cpu")
            yield from (known[name] for name in ("gated_delta_extend", "gated_delta_step") if name in known)
        case "expert_combine":
            weights, width = torch.empty(rows, attributes["top_k"]), (attributes["top_k"], attributes["hidden"])
            yield partial(module.expert_combine, torch.empty(rows, *width), weights)
            yield partial(module.combine, torch.empty(widths, rows, *width), weights)
        case "router":
            x, weight = (bf16(count, attributes["hidden"]) for count in (rows, attributes["experts"]))
            yield partial(module.router, x, weight)
            held = torch.zeros(rows, attributes["top_k"], dtype=torch.int32)
            yield partial(module.dispatch, held, attributes["experts"] // owners)
        case _:
            example = importlib.import_module(f"isoexec_compiler.ops.{op}").example
            for name, arguments in example(attributes, torch.bfloat16, rows, "cpu").items():
                yield partial(getattr(module, name), *arguments)
