"""The table of bytes on the wire (`bench/parallel_wire.py`) against the bytes that collectives really move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bench.parallel_wire import BF16, FP32, Layout, experts, reduced
from tests.laws.moe_layer import SMALL, Moe, share
from tests.support.inputs import normal
from tests.support.ranks import on_ranks
from tests.support.support_modules import support_module
from tests.test_collectives import COLLECTIVES, kernels

TOKENS, COLUMNS = 64, 512
EXPERTS = support_module("routed_experts")
MOE = Moe("cpu")


@contextmanager
def counting() -> Iterator[list[int]]:
    """The bytes that this rank receives from others, call by call; sizes and splits of an exchange are not counted."""
    found: list[int] = []
    gather, exchange = dist.all_gather_into_tensor, dist.all_to_all_single
    rank, world = dist.get_rank(), dist.get_world_size()

    def gathered(out: torch.Tensor, own: torch.Tensor, **more: Any) -> None:
        found.append(out.nbytes - own.nbytes)
        gather(out, own, **more)

    def exchanged(out: torch.Tensor, own: torch.Tensor, receive: Any = None, send: Any = None, **more: Any) -> None:
        if out.dtype == torch.uint8:
            rows = sum(receive) if receive else world
            mine = receive[rank] if receive else 1
            found.append(out.nbytes * (rows - mine) // rows if rows else 0)
        exchange(out, own, receive, send, **more)

    dist.all_gather_into_tensor, dist.all_to_all_single = gathered, exchanged
    yield found
    dist.all_gather_into_tensor, dist.all_to_all_single = gather, exchange


def received(call: Callable[[], object], group: dist.ProcessGroup) -> float:
    """Bytes a rank receives on average."""
    with counting() as found:
        call()
    total = torch.tensor(float(sum(found)))
    dist.all_reduce(total, group=group)
    return float(total) / dist.get_world_size(group)


def check(group: dist.ProcessGroup) -> None:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    COLLECTIVES.EXTRA_BYTES = EXPERTS.tree_all_reduce.__globals__["EXTRA_BYTES"] = -1
    part = normal(TOKENS, COLUMNS, seed=rank)

    def combine(parts: torch.Tensor) -> torch.Tensor:
        return COLLECTIVES.tree_sum(parts).bfloat16()

    for sp, call in ((False, COLLECTIVES.tree_all_reduce), (True, COLLECTIVES.tree_reduce_scatter)):
        due = TOKENS * reduced(COLUMNS, Layout(tp=world, sp=sp), FP32, BF16)
        assert received(lambda call=call: call(part, group, combine), group) == due

    x = MOE.tokens(TOKENS, seed=0)
    chosen, weights = MOE.router.router(x, MOE.router_weight)
    functions = kernels(EXPERTS)
    due = TOKENS * experts(SMALL.top_k, SMALL.hidden, Layout(tp=world), FP32)
    by_width = (x, chosen, weights, *share(MOE, rank, world), functions, group)
    assert received(lambda: EXPERTS.experts_by_width(*by_width), group) == due

    # Uniform routing, as the table assumes: token t goes to experts t and t + 1.
    chosen = ((torch.arange(TOKENS)[:, None] + torch.arange(SMALL.top_k)) % SMALL.experts).int()
    owned = slice(rank * SMALL.experts // world, (rank + 1) * SMALL.experts // world)
    held = (MOE.gate_up_weight[owned], MOE.down_weight[owned], functions, group)
    due = TOKENS * experts(SMALL.top_k, SMALL.hidden, Layout(tp=1, ep=world), FP32)
    assert received(lambda: EXPERTS.experts_by_owner(x, chosen, weights, *held), group) == due


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_received(world: int) -> None:
    on_ranks(world, check)
