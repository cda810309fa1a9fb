"""Laws of the routed experts: a token's row is a function of the token and its experts, on any layout."""

from __future__ import annotations

import pytest
import torch

from tests.laws.moe_layer import TOKENS, Moe, share
from tests.support.bits import assert_same_bits, differing, poison, poisoned_outputs
from tests.support.inputs import normal


def routing(moe: Moe, tokens: int, seed: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    x = moe.tokens(tokens, seed)
    return (x, *moe.router.router(x, moe.router_weight))


def pairwise(nodes: torch.Tensor) -> torch.Tensor:
    """The balanced tree over the first axis, a power of two."""
    return nodes[0] if len(nodes) == 1 else pairwise(nodes[: len(nodes) // 2]) + pairwise(nodes[len(nodes) // 2 :])


def test_a_token_alone_is_the_token_in_any_batch(place: str) -> None:
    moe = Moe(place)
    full = moe.tokens(max(TOKENS[place]), seed=1)
    with poisoned_outputs():
        alone = [moe(full[row : row + 1].contiguous()) for row in range(3)]
        for count in TOKENS[place]:
            out = moe(full[:count].contiguous())
            assert int(out.isnan().sum()) == 0
            for row in range(min(3, count)):
                assert_same_bits(out[row : row + 1], alone[row], f"row {row} of {count}")
            moved = full[:count].roll(1, 0).contiguous()
            assert_same_bits(moe(moved), out.roll(1, 0), f"rotated batch of {count}")


def test_against_float64(place: str) -> None:
    """bf16 roundings of gate_up, activation and result: relative error below 1e-2 in norm."""
    for weighted in ("act", "combine"):
        for slots in ("expert", "score"):
            moe = Moe(place, weighted=weighted, slots=slots)
            x, chosen, weights = routing(moe, 33)
            out, wanted = moe(x).double(), moe.float64(x, chosen, weights)
            assert (out - wanted).norm() < 1e-2 * wanted.norm()


def test_weight_in_another_place_or_slots_in_another_order_is_another_contract(place: str) -> None:
    """Control: each declared choice moves bits."""
    x = Moe(place).tokens(64, seed=3)
    found = [
        Moe(place, weighted=w, slots=s)(x) for w, s in (("act", "expert"), ("combine", "expert"), ("act", "score"))
    ]
    assert differing(found[0], found[1]) > 0
    if found[0].shape[1] > 64:  # two rows commute: with top_k 2 the order of slots cannot be seen
        assert differing(found[0], found[2]) > 0


def test_all_tokens_to_the_same_experts_and_memory_of_the_others_unread(place: str) -> None:
    moe = Moe(place)
    s, tokens = moe.sizes, 70
    x, _, weights = routing(moe, tokens)
    used = torch.arange(s.top_k) * (s.experts // s.top_k) + 1
    chosen = used.to(torch.int32).expand(tokens, -1).contiguous().to(moe.device)
    rows = moe.rows(x, chosen, weights)
    others = torch.ones(s.experts, dtype=torch.bool).index_fill_(0, used, False).to(moe.device)
    assert int(others.sum()) == s.experts - s.top_k
    poisoned = [
        torch.where(others[:, None, None], poison((1,), w.dtype, moe.device), w)
        for w in (moe.gate_up_weight, moe.down_weight)
    ]
    with poisoned_outputs():
        assert_same_bits(moe.rows(x, chosen, weights, *poisoned), rows)


def test_numbering_of_the_experts_moves_no_row(place: str) -> None:
    moe = Moe(place)
    x, chosen, weights = routing(moe, 65)
    permuted = torch.randperm(moe.sizes.experts, generator=torch.Generator().manual_seed(1)).to(moe.device)
    new_number = torch.empty_like(permuted).index_copy_(0, permuted, torch.arange(len(permuted), device=moe.device))
    renamed = new_number[chosen.long()].to(torch.int32)
    moved = moe.rows(x, renamed, weights, moe.gate_up_weight[permuted], moe.down_weight[permuted])
    assert_same_bits(moved, moe.rows(x, chosen, weights))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_that_own_experts(place: str, ranks: int) -> None:
    """Expert parallelism: each rank computes the rows of its experts, whoever sent them, and the owner combines."""
    moe = Moe(place)
    x, chosen, weights = routing(moe, 67)
    top_k, hidden = chosen.shape[1], moe.sizes.hidden
    rows = poison((67 * top_k, hidden), device=moe.device)
    share_of = moe.sizes.experts // ranks
    for rank in range(ranks):
        slot = ((chosen // share_of).flatten() == rank).nonzero()[:, 0].flip(0)  # arrival in another order
        local = (chosen.flatten()[slot] - rank * share_of)[:, None].contiguous()
        mine = slice(rank * share_of, (rank + 1) * share_of)
        sent = weights.flatten()[slot][:, None].contiguous()
        computed = moe.rows(x[slot // top_k], local, sent, moe.gate_up_weight[mine], moe.down_weight[mine])
        rows[slot] = computed[:, 0]
    out = moe.combine.expert_combine(rows.view(67, top_k, hidden), weights)
    assert_same_bits(out, moe(x), f"{ranks} ranks")


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_that_share_every_expert(place: str, ranks: int) -> None:
    """Expert tensor parallelism: nodes of the leaf tree, combined pairwise before the sum over slots."""
    moe = Moe(place)
    x, chosen, weights = routing(moe, 67)
    parts = torch.stack([moe.rows(x, chosen, weights, *share(moe, rank, ranks)) for rank in range(ranks)])
    assert_same_bits(moe.combine.combine(parts, weights), moe(x), f"{ranks} ranks")
    assert_same_bits(pairwise(parts), moe.rows(x, chosen, weights), "nodes")
    rotated = differing(pairwise(parts.roll(1, 0)), pairwise(parts))
    assert (rotated > 0) == (ranks > 2), "ranks in another order must show at 4 and 8, and cannot at 2"


def test_rows_rounded_before_the_sum_differ(place: str) -> None:
    """Control: a second rounding is seen."""
    moe = Moe(place)
    x, chosen, weights = routing(moe, 64)
    rounded = moe.rows(x, chosen, weights).bfloat16().float()
    assert differing(moe.combine.expert_combine(rounded, weights), moe(x)) > 0


def test_another_number_of_leaves_differs(place: str) -> None:
    """Control: the tree is really there."""
    moe = Moe(place)
    x, chosen, weights = routing(moe, 16)
    flat = Moe(place, type(moe.sizes)(**{f: getattr(moe.sizes, f) for f in moe.sizes.__slots__} | {"leaves": 1}))
    assert differing(flat.rows(x, chosen, weights), moe.rows(x, chosen, weights)) > 0


def test_gradients_against_float64_and_the_same_twice(place: str) -> None:
    for weighted in ("act", "combine"):
        moe = Moe(place, weighted=weighted)
        x, chosen, weights = routing(moe, 40)
        moe.gate_up_weight, moe.down_weight = moe.gate_up_weight.clone(), moe.down_weight.clone()
        leaves = [t.requires_grad_() for t in (x, weights, moe.gate_up_weight, moe.down_weight)]
        upstream = normal(*x.shape, seed=9, dtype="bf16", device=moe.device)

        def backward(moe: Moe = moe, leaves: list = leaves, chosen: torch.Tensor = chosen, up=upstream) -> tuple:
            out = moe.combine.expert_combine(moe.rows(leaves[0], chosen, leaves[1]), leaves[1])
            return torch.autograd.grad(out, leaves, up)

        found = backward()
        for first, again in zip(found, backward(), strict=True):
            assert_same_bits(first, again, "backward twice")
        wanted = torch.autograd.grad(moe.float64(x, chosen, weights), leaves, upstream.double())
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours.double() - theirs.double()).norm() < 2e-2 * theirs.double().norm()  # bf16 on the way


def test_fp32_on_the_cpu() -> None:
    moe = Moe("cpu", dtype="fp32")
    x, chosen, weights = routing(moe, 19)
    assert (moe(x).double() - moe.float64(x, chosen, weights)).norm() < 1e-5 * x.double().norm()
    parts = torch.stack([moe.rows(x, chosen, weights, *share(moe, rank, 4)) for rank in range(4)])
    assert_same_bits(moe.combine.combine(parts, weights), moe(x))


def test_no_tokens(place: str) -> None:
    moe = Moe(place)
    assert moe(moe.tokens(3, seed=1)[:0]).shape == (0, moe.sizes.hidden)


def test_refusals(place: str) -> None:
    moe = Moe(place)
    x, chosen, weights = routing(moe, 4)
    order, offsets = moe.router.dispatch(chosen)
    with pytest.raises(ValueError, match="do not fit"):
        moe.gate_up.expert_gate_up(x, moe.gate_up_weight[1:], order, offsets)
    with pytest.raises(ValueError, match="is not a node"):
        moe.down.expert_down(x[:, :24].contiguous(), moe.down_weight[:, :, :24].contiguous(), order, offsets)
    with pytest.raises(ValueError, match="balanced tree"):
        moe.combine.combine(torch.zeros(3, 4, *chosen.shape[1:], moe.sizes.hidden, device=moe.device), weights)


def test_twenty_runs_one_pattern(place: str) -> None:
    """On a GPU as replays of one captured graph, its inputs changed in between and back."""
    moe = Moe(place)
    x = moe.tokens(96, seed=12)
    first, held = moe(x), x.clone()
    if place == "sm90":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = moe(held)
        for _ in range(10):
            held.copy_(x.flip(0))
            graph.replay()
            assert_same_bits(out, first.flip(0), "replay of other tokens")
            held.copy_(x)
            graph.replay()
            assert_same_bits(out, first, "replay")
    for _ in range(20):
        assert_same_bits(moe(x), first)


def test_offsets_beyond_32_bits(place: str) -> None:
    """On the GPU 140,800 tokens make 2.3e9 elements of rows; the last tokens have the bits of the first."""
    moe = Moe(place)
    x = moe.tokens(64, seed=13)
    copies = 2200 if place == "sm90" else 2
    out, alone = moe(x.repeat(copies, 1)), moe(x)
    assert place != "sm90" or len(out) * moe.sizes.top_k * moe.sizes.hidden > 2**31
    for copy in (0, copies // 2, copies - 1):
        assert_same_bits(out[copy * 64 : (copy + 1) * 64], alone, f"copy {copy}")
