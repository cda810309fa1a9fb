# SPDX-License-Identifier: Apache-2.0
"""Order-free digests of every row that a region produces, to compare two runtimes without aligning their batches.

Rows are cut to a width that no way of parallelism divides (a head, the smallest shard of the MLP or the vocabulary), so
that the sets are the same for every tensor-parallel size and every order of heads. Where a region ends in a reduction
over ranks, the root is digested before it is rounded: rounding to bf16 hides nearly every wrong order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from . import package
from .bits import row_digests
from .regions import BOUND, tapped
from .tree_collectives import tree_sum


@dataclass(slots=True)
class Trace:
    """`digests[region]` is the sorted set of int64 row digests; `tokens` counts rows that entered the model."""

    digests: dict[str, torch.Tensor] = field(default_factory=dict)
    tokens: int = 0


def widths() -> dict[str, int]:
    """The width of a digested row for each region whose rows are not the residual stream's."""
    contract = package.load()
    largest = max(int(size) for size in contract.sizes("tp"))
    model = contract.model
    head, shard = model["head_dim"], model.get("moe_intermediate_size", model.get("intermediate_size")) // largest
    found = dict.fromkeys(("qkv", "q_norm", "k_norm", "rope", "attn", "attn_gate"), head)
    found |= dict.fromkeys(("gate_up", "act", "expert_gate_up", "expert_act"), shard)
    if "gdn_core" in contract.contract["regions"]:
        key, value = model["linear_key_head_dim"], model["linear_value_head_dim"]
        found |= dict.fromkeys(("gdn_in", "gdn_conv"), math.gcd(key, value))
        found |= {"gdn_qk_norm": key, "gdn_core": value, "gdn_norm": value}
        found["gdn_gates"] = model["linear_num_value_heads"] // largest
    if "shared_gate" in contract.contract["regions"]:
        found |= dict.fromkeys(("shared_gate_up", "shared_act"), model["shared_expert_intermediate_size"] // largest)
        found["shared_gate"] = 1
    return found | {"head": model["vocab_size"] // largest}


def _root(region: str, operator: str, arguments: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
    """The result, in fp32 before its rounding where the region is a tree over ranks."""
    if operator == "combine":
        return tree_sum(arguments[0])
    if operator == "matmul" and (region, "partial") in BOUND.table:
        return BOUND.table[region, "partial"](*arguments).detach()
    return result


def _cut(region: str, rows: torch.Tensor, cut: Mapping[str, int]) -> Iterator[torch.Tensor]:
    """The rows in slices of the region's width; those of gdn_in end in two numbers for each value head."""
    if region == "gdn_in":
        contract = package.load()
        whole = contract.contract["regions"][region]["attributes"]["n"]
        narrow = 2 * contract.model["linear_num_value_heads"] * rows.shape[1] // whole
        yield rows[:, -narrow:].reshape(-1, cut["gdn_gates"])
        rows = rows[:, :-narrow]
    yield rows.reshape(-1, cut.get(region, rows.shape[-1]))


@contextmanager
def collecting() -> Iterator[Trace]:
    """Collect row digests while the context is open; the trace is filled when it closes."""
    cut, seen, trace = widths(), dict[str, list[torch.Tensor]](), Trace()
    vocab = package.load().model["vocab_size"]

    def tap(region: str, operator: str, arguments: list[torch.Tensor], result: torch.Tensor) -> None:
        if operator == "embedding":
            trace.tokens += result.shape[0]
            if arguments[1].shape[0] != vocab:
                return  # a shard: the rows are whole when they have been selected over the ranks
        if region == "logprobs" or operator == "partial":
            return  # log-probabilities are compared themselves; a partial is a node that depends on the number of ranks
        if operator == "dispatch":
            return  # integers
        if operator == "expert_down":
            return  # rows or nodes: digested where they are whole, when a token's rows are added
        if operator in ("expert_combine", "combine_slots"):
            roots = tree_sum(arguments[0]) if operator == "combine_slots" else arguments[0].detach()
            seen.setdefault("expert_down", []).append(row_digests(roots.flatten(0, 1)).unique())
        if operator in ("router", "gdn_gates"):
            result = torch.cat((result[0].float(), result[1]), dim=1)
        if operator == "rotary":
            result = torch.cat(result, dim=1)
        rows = _root(region, operator, arguments, result.detach())
        seen.setdefault(region, []).extend(row_digests(part).unique() for part in _cut(region, rows, cut))

    with tapped(tap):
        yield trace
    trace.digests = {region: torch.cat(parts).unique() for region, parts in sorted(seen.items())}


def missing(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """For each region of `ours`, how many of its row digests `theirs` does not hold."""
    return {
        region: int((~torch.isin(rows, theirs.get(region, rows.new_empty(0)))).sum()) for region, rows in ours.items()
    }
