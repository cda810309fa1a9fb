# SPDX-License-Identifier: Apache-2.0
"""Order-free digests of every row that a region produces, to compare two runtimes without aligning their batches.

Rows are cut to a width that no way of parallelism divides (a head, the smallest shard of the MLP or the vocabulary), so
that the sets are the same for every tensor-parallel size and every order of heads. Where a region ends in a reduction
over ranks, the root is digested before it is rounded: rounding to bf16 hides nearly every wrong order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from . import package
from .bits import row_digests
from .regions import tapped

Digests = dict[str, torch.Tensor]


def widths() -> dict[str, int]:
    """The width of a digested row for each region whose rows are not the residual stream's."""
    contract = package.load()
    largest = max(int(size) for size in contract.sizes("tp"))
    model = contract.model
    head, shard = model["head_dim"], model["intermediate_size"] // largest
    found = {name: head for name in ("qkv", "q_norm", "k_norm", "rope", "attn")}
    return found | {"gate_up": shard, "act": shard, "head": model["vocab_size"] // largest}


@contextmanager
def collecting() -> Iterator[Digests]:
    """Collect the sorted set of row digests of each region while the context is open; filled when it closes."""
    cut, seen, digests = widths(), dict[str, list[torch.Tensor]](), Digests()

    def tap(region: str, operator: str, result: torch.Tensor) -> None:
        if operator.startswith("shard_") or operator == "partial":
            return
        rows = result.detach() if result.dim() > 1 else result.detach()[:, None]
        seen.setdefault(region, []).append(row_digests(rows.reshape(-1, cut.get(region, rows.shape[-1]))).unique())

    with tapped(tap):
        yield digests
    digests |= {region: torch.cat(parts).unique() for region, parts in sorted(seen.items())}


def missing(ours: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """For each region of `ours`, how many of its row digests `theirs` does not hold."""
    return {
        region: int((~torch.isin(rows, theirs.get(region, rows.new_empty(0)))).sum()) for region, rows in ours.items()
    }
