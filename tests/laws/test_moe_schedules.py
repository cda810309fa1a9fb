"""Schedules of the grouped products on Hopper: whatever the tile, the copies and the roles of warps, the same bits."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
import torch

from isoexec_compiler.registry import Values
from tests.laws.moe_layer import LARGE, Moe, Sizes, share
from tests.support.bits import assert_same_bits, differing, poison, poisoned_outputs
from tests.support.inputs import integers
from tests.support.rendering import render_kernel
from tests.support.targets import HOPPER

pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")

WIDER = Sizes(experts=128, top_k=8, hidden=2048, width=768)  # Qwen3-30B-A3B: leaves of 96
PLAIN: Values = {"schedule": "tiles", "block_m": 16, "block_n": 64, "num_warps": 4, "num_stages": 3}
GATE_UP: tuple[Values, ...] = (
    {**PLAIN, "block_m": 64, "block_n": 256, "block_k": 64},
    {**PLAIN, "block_m": 128, "block_n": 128, "block_k": 128, "num_warps": 8, "num_stages": 2},
    {**PLAIN, "schedule": "experts", "block_n": 32, "block_k": 128},
    {**PLAIN, "schedule": "rows", "block_k": 128},
    {**PLAIN, "schedule": "rows", "block_m": 1, "block_n": 32, "block_k": 512},
    {**PLAIN, "schedule": "specialised", "block_k": 64},
)
DOWN: tuple[Values, ...] = (
    {**PLAIN, "block_m": 32, "block_n": 128},
    {**PLAIN, "schedule": "experts", "block_n": 32},
    {**PLAIN, "schedule": "rows"},
    {**PLAIN, "schedule": "rows", "block_m": 1, "block_n": 32, "num_warps": 1, "num_stages": 7},
    {**PLAIN, "schedule": "resident"},
)
LOADS = ("uniform", "one expert", "few rows", "edges")


def launched(implementation: str, size: Sizes, launch: Values) -> ModuleType:
    attributes = {name: getattr(size, name) for name in ("experts", "top_k", "hidden", "width")}
    return render_kernel(implementation, "sm90", attributes, launch=((None, launch),))


def chosen(size: Sizes, load: str, tokens: int) -> torch.Tensor:
    """int32 [tokens, k], each token's experts distinct; most loads leave experts without a row."""
    if load == "uniform":
        scores = torch.rand(tokens, size.experts, generator=torch.Generator().manual_seed(tokens))
        return scores.topk(size.top_k).indices.to(torch.int32).cuda()
    first = {
        "one expert": torch.zeros(tokens, dtype=torch.int64),
        "few rows": integers(tokens, below=size.experts // 2, seed=2),
        # Experts of 63, 64, 65, 127, 128, 129 and the other rows: halves and tiles that are full, empty or one row.
        "edges": torch.bucketize(torch.arange(tokens), torch.tensor([0, 63, 127, 192, 319, 447, 576]), right=True) * 8,
    }[load]
    return ((first[:, None] + torch.arange(size.top_k)) % size.experts).to(torch.int32).cuda()


@pytest.mark.parametrize("size", [LARGE, WIDER], ids=["leaf 64", "leaf 96"])
@pytest.mark.parametrize("load", LOADS)
def test_every_schedule_has_the_bits_of_small_tiles(size: Sizes, load: str) -> None:
    """Rows of absent experts are NaN in memory, and so is every output before it is written."""
    moe = Moe("sm90", size)
    gate_up = [launched("expert_gate_up_sequential", size, x) for x in ({**PLAIN, "block_k": 64}, *GATE_UP)]
    down = [launched("expert_down_tree", size, launch) for launch in (PLAIN, *DOWN)]
    for tokens in (1, 7, 700, 2100):
        x, experts = moe.tokens(tokens, seed=tokens), chosen(size, load, tokens)
        order, offsets = moe.router.dispatch(experts)
        absent = (offsets.diff() == 0)[:, None, None]
        assert int(absent.sum()) > 0 or (load == "uniform" and tokens >= 700)
        up, out = (
            torch.where(absent, poison((1,), w.dtype, moe.device), w) for w in (moe.gate_up_weight, moe.down_weight)
        )
        weights = torch.rand(experts.shape, device=moe.device)
        with poisoned_outputs():
            projected = [module.expert_gate_up(x, up, order, offsets) for module in gate_up]
            hidden = moe.act.expert_act(projected[0], weights, order)
            rows = [module.expert_down(hidden, out, order, offsets) for module in down]
        assert int(projected[0].isnan().sum()) == int(rows[0].isnan().sum()) == 0
        for found, name in ((projected, "gate_up"), (rows, "down")):
            for other in found[1:]:
                assert_same_bits(other, found[0], f"{name}, {load}, {tokens} tokens")


@pytest.mark.parametrize("size", [LARGE, WIDER], ids=["leaf 64", "leaf 96"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nodes_of_ranks_on_every_schedule(ranks: int, size: Sizes) -> None:
    """The shares of ranks that cut the width: as many leaves fewer, and the tree over the ranks gives the whole."""
    moe = Moe("sm90", size)
    x, experts = moe.tokens(300, seed=5), chosen(size, "uniform", 300)
    order, offsets = moe.router.dispatch(experts)
    hidden = moe.act.expert_act(
        moe.gate_up.expert_gate_up(x, moe.gate_up_weight, order, offsets), torch.rand(300, 8, device="cuda"), order
    )
    width = size.width // ranks
    whole = launched("expert_down_tree", size, PLAIN).expert_down(hidden, moe.down_weight, order, offsets)
    for launch in DOWN:
        module = launched("expert_down_tree", size, launch)
        nodes = [
            module.expert_down(
                hidden[:, rank * width : (rank + 1) * width].contiguous(), share(moe, rank, ranks)[1], order, offsets
            )
            for rank in range(ranks)
        ]
        while len(nodes) > 1:
            nodes = [left + right for left, right in zip(nodes[::2], nodes[1::2], strict=True)]
        assert_same_bits(nodes[0], whole, f"{launch['schedule']}, {ranks} ranks")


def test_another_number_of_leaves_differs_on_every_schedule() -> None:
    """Control: each schedule really computes its tree."""
    moe, flat = Moe("sm90"), replace(LARGE, leaves=1)
    hidden = torch.randn(640, LARGE.width, dtype=torch.bfloat16, device="cuda")
    order, offsets = moe.router.dispatch(chosen(LARGE, "uniform", 80))
    for launch in (PLAIN, *DOWN):
        attributes = {name: getattr(flat, name) for name in ("experts", "top_k", "hidden", "width")}
        one = render_kernel("expert_down_tree", "sm90", attributes, {"leaves": 1}, ((None, launch),))
        eight = launched("expert_down_tree", LARGE, launch)
        found = [module.expert_down(hidden, moe.down_weight, order, offsets) for module in (one, eight)]
        assert differing(*found) > 0


def test_twenty_replays_of_every_schedule() -> None:
    """4096 rows of random load in one graph, its rows changed in between and back."""
    moe = Moe("sm90")
    x, experts = moe.tokens(512, seed=8), chosen(LARGE, "uniform", 512)
    order, offsets = moe.router.dispatch(experts)
    weights = torch.rand(512, 8, device="cuda")
    gate_up = launched("expert_gate_up_sequential", LARGE, GATE_UP[-1])
    down = launched("expert_down_tree", LARGE, DOWN[-1])

    def layer(tokens: torch.Tensor) -> torch.Tensor:
        projected = gate_up.expert_gate_up(tokens, moe.gate_up_weight, order, offsets)
        return down.expert_down(moe.act.expert_act(projected, weights, order), moe.down_weight, order, offsets)

    first, other, held = layer(x), layer(x.flip(0)), x.clone()
    assert differing(first, other) > 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(held)
    for _ in range(20):
        held.copy_(x.flip(0))
        graph.replay()
        assert_same_bits(out, other, "replay of other tokens")
        held.copy_(x)
        graph.replay()
        assert_same_bits(out, first, "replay")
