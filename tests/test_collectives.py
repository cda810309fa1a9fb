"""Collectives over real gloo processes: every layout gives the bits of one rank.

One start a group size runs all checks. The parent draws all parts and computes what one rank finds; the ranks, forked
from it, inherit both.
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from tests.laws.moe_layer import SMALL, Moe, share
from tests.support.bits import assert_same_bits, differing
from tests.support.inputs import normal, wide
from tests.support.ranks import on_ranks
from tests.support.support_modules import support_module

WORLDS = (1, 2, 3, 4, 8)
COLUMNS = 257
# Rows on both sides of the one-shot threshold at every group size, and those that no group divides.
ROWS = (0, 1, 3, 9, 17, 509, 8200)
MOE = Moe("cpu")
EXPERTS = support_module("routed_experts")
COLLECTIVES = importlib.import_module(f"{EXPERTS.__package__}.tree_collectives")
Routed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def pairwise(parts: list[torch.Tensor]) -> torch.Tensor:
    """The balanced tree as a recursion on the first half, the largest power of two below the length."""
    if len(parts) == 1:
        return parts[0]
    half = 1 << ((len(parts) - 1).bit_length() - 1)
    return pairwise(parts[:half]) + pairwise(parts[half:])


@cache
def parts_of(rows: int) -> torch.Tensor:
    """Nodes of eight ranks, [8, rows, COLUMNS]."""
    return wide(max(WORLDS), rows, COLUMNS, seed=rows)


@cache
def root_of(rows: int, world: int) -> torch.Tensor:
    return pairwise(list(parts_of(rows)[:world])).bfloat16()


@cache
def routed(rows: int) -> Routed:
    """Tokens, their experts and weights; three tokens go to the same experts, all of one rank."""
    x = MOE.tokens(rows, seed=rows)
    chosen, weights = MOE.router.router(x, MOE.router_weight)
    if rows == 3:
        chosen = torch.arange(SMALL.top_k, dtype=torch.int32).expand(rows, -1).contiguous()
    return x, chosen, weights


@cache
def whole_of(rows: int) -> torch.Tensor:
    """What one rank computes for `routed(rows)`."""
    experts = EXPERTS
    return experts.routed_experts(*routed(rows), MOE.gate_up_weight, MOE.down_weight, kernels(experts))


def token_counts(world: int) -> tuple[int, ...]:
    return (0, 1, 3, world - 1, world + 1, 2 * world + 1, 64, 509)


def rounded(collectives: ModuleType):
    return lambda parts: collectives.tree_sum(parts).bfloat16()


def check_reductions(group: dist.ProcessGroup, collectives: ModuleType) -> None:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    shots = set()
    for rows in ROWS:
        parts, root = parts_of(rows), root_of(rows, world)
        shots.add(collectives.extra_bytes(parts[0].numel() * 4, world) <= collectives.EXTRA_BYTES)
        found = collectives.tree_all_reduce(parts[rank], group, rounded(collectives))
        assert_same_bits(found, root, f"all-reduce of {rows} rows on {world} ranks")
        again = collectives.tree_all_reduce(parts[rank].T.contiguous().T, group, rounded(collectives))
        assert_same_bits(again, root, "strided part")
        if rows % world:
            with pytest.raises(ValueError, match="cannot be shared equally"):
                collectives.tree_reduce_scatter(parts[rank], group)
            continue
        mine = slice(rank * rows // world, (rank + 1) * rows // world)
        scattered = collectives.tree_reduce_scatter(parts[rank], group, rounded(collectives))
        assert_same_bits(scattered, root[mine], f"reduce-scatter of {rows} rows on {world} ranks")
        assert_same_bits(collectives.gather_rows(scattered, group), root, "gathered slices")
    assert world == 1 or shots == {True, False}, "sizes lie on one side of the threshold"


def check_rank_order(group: dist.ProcessGroup, collectives: ModuleType) -> None:
    """Control: with the ranks rotated four and eight show it, two cannot."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    parts = normal(world, 64, COLUMNS, seed=1)
    root = collectives.tree_all_reduce(parts[rank], group)
    rotated = collectives.tree_all_reduce(parts[(rank + 1) % world], group)
    assert (differing(root, rotated) > 0) == (world > 2)
    fold = parts[0]
    for part in parts[1:]:
        fold = fold + part
    assert (differing(root, fold) > 0) == (world > 3)


def check_vocabulary(group: dist.ProcessGroup, collectives: ModuleType) -> None:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    row_max, sums = normal(world, 33, seed=2), normal(33, 8, seed=3)
    assert_same_bits(collectives.vocab_max(row_max[rank], group), row_max.amax(0), "maximum")
    mine = sums[:, rank * 8 // world : (rank + 1) * 8 // world].contiguous()
    assert_same_bits(collectives.vocab_sums(mine, group), sums, "leaf sums")
    logit = normal(33, seed=4)
    logit[:3] = torch.tensor([-0.0, 1e-45, -torch.inf])
    owner = torch.arange(33) % world
    held = torch.where(owner == rank, logit, 0.0)
    assert_same_bits(collectives.vocab_target(held, group), logit, "target")
    summed = collectives.tree_all_reduce(held[:, None], group)[:, 0]
    assert (differing(summed, logit) > 0) == (world > 1), "a sum loses -0.0, a union of bits does not"


def kernels(experts: ModuleType):
    return experts.Kernels(
        dispatch=MOE.router.dispatch,
        gate_up=MOE.gate_up.expert_gate_up,
        act=MOE.act.expert_act,
        down=MOE.down.expert_down,
        expert_combine=MOE.combine.expert_combine,
        combine=MOE.combine.combine,
    )


def check_experts(group: dist.ProcessGroup, experts: ModuleType) -> None:
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    functions = kernels(experts)
    owned = slice(rank * SMALL.experts // world, (rank + 1) * SMALL.experts // world)
    mine = share(MOE, rank, world)
    for rows in token_counts(world):
        inputs, whole = routed(rows), whole_of(rows)
        by_width = experts.experts_by_width(*inputs, *mine, functions, group)
        assert_same_bits(by_width, whole, f"{rows} tokens, width shared by {world}")
        if rows % world == 0:
            part = experts.experts_by_width(*inputs, *mine, functions, group, scatter=True)
            slice_of = slice(rank * rows // world, (rank + 1) * rows // world)
            assert_same_bits(part, whole[slice_of], f"{rows} tokens, width shared, sequence scattered")
        own = slice(rank, None, world)  # uneven: with few tokens some ranks own none
        by_owner = experts.experts_by_owner(
            *(t[own].contiguous() for t in inputs), MOE.gate_up_weight[owned], MOE.down_weight[owned], functions, group
        )
        assert_same_bits(by_owner, whole[own], f"{rows} tokens, experts shared by {world}")


def check_shared_owners(experts: ModuleType) -> None:
    """Each expert owned by ranks that share its width: every way to cut the world into owners and sharers."""
    world, rank = dist.get_world_size(), dist.get_rank()
    for sharing in (2, 4):
        owners = world // sharing
        if owners < 2:
            continue
        across = [dist.new_group(list(range(i, world, sharing))) for i in range(sharing)][rank % sharing]
        beside = [dist.new_group(list(range(i * sharing, (i + 1) * sharing))) for i in range(owners)][rank // sharing]
        owned = slice(rank // sharing * SMALL.experts // owners, (rank // sharing + 1) * SMALL.experts // owners)
        gate_up, down = (w[owned].contiguous() for w in share(MOE, rank % sharing, sharing))
        for rows in token_counts(world):
            own = slice(rank // sharing, None, owners)
            inputs = (t[own].contiguous() for t in routed(rows))
            found = experts.experts_by_owner(*inputs, gate_up, down, kernels(experts), across, beside)
            assert_same_bits(found, whole_of(rows)[own], f"{rows} tokens, {owners} owners, {sharing} sharers")


def check_two_shots(group: dist.ProcessGroup, experts: ModuleType, collectives: ModuleType) -> None:
    """Slices of tokens combined by their owner and gathered, at a row count the group does not divide."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    before, collectives.EXTRA_BYTES = collectives.EXTRA_BYTES, -1
    sliced = experts.experts_by_width(*routed(41), *share(MOE, rank, world), kernels(experts), group)
    collectives.EXTRA_BYTES = before
    assert_same_bits(sliced, whole_of(41), f"two shots on {world} ranks")


def leaves_of(rows: int, tokens: slice, owned: slice) -> list[torch.Tensor]:
    x, _, weights = routed(rows)
    shares = (x[tokens], weights[tokens], MOE.gate_up_weight[owned], MOE.down_weight[owned])
    return [t.clone().contiguous().requires_grad_() for t in shares]


@cache
def gradients(rows: int) -> tuple[torch.Tensor, ...]:
    """Gradients on one rank with respect to tokens, router weights and both expert weights."""
    experts = EXPERTS
    x, *others = leaves_of(rows, slice(None), slice(None))
    out = experts.routed_experts(x, routed(rows)[1], *others, kernels(experts))
    return torch.autograd.grad(out, (x, *others), normal(*x.shape, seed=6, dtype="bf16"))


def check_gradients(group: dist.ProcessGroup, experts: ModuleType) -> None:
    """A rank's share of the gradients of one rank, to a rounding of bf16 sums in another order."""
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    owned = slice(rank * SMALL.experts // world, (rank + 1) * SMALL.experts // world)
    own = slice(rank, None, world)
    x, *others = leaves_of(64, own, owned)
    out = experts.experts_by_owner(x, routed(64)[1][own].contiguous(), *others, kernels(experts), group)
    upstream = normal(64, SMALL.hidden, seed=6, dtype="bf16")[own]
    found = torch.autograd.grad(out, (x, *others), upstream)
    whole = gradients(64)
    for ours, theirs in zip(found, (whole[0][own], whole[1][own], whole[2][owned], whole[3][owned]), strict=True):
        assert (ours.double() - theirs.double()).norm() <= 1e-2 * theirs.double().norm()


def check_all(group: dist.ProcessGroup) -> None:
    collectives, experts = COLLECTIVES, EXPERTS
    check_reductions(group, collectives)
    check_rank_order(group, collectives)
    if SMALL.experts % dist.get_world_size(group) == 0:
        check_vocabulary(group, collectives)
        check_experts(group, experts)
        check_shared_owners(experts)
        check_two_shots(group, experts, collectives)
        check_gradients(group, experts)


@pytest.mark.parametrize("world", WORLDS)
def test_every_layout_has_the_bits_of_one_rank(world: int) -> None:
    for rows in ROWS:
        root_of(rows, world)
    for rows in (*token_counts(world), 41):
        whole_of(rows)
    gradients(64)
    on_ranks(world, check_all)


def test_a_tree_is_not_summed_in_bf16() -> None:
    with pytest.raises(ValueError, match="float32"):
        COLLECTIVES.tree_sum(torch.zeros(2, 3, dtype=torch.bfloat16))


def test_tree_against_the_published_discriminating_vector() -> None:
    """1, 2^-24, 2^-24, 2^-24: a left fold gives 0x3F800000, the balanced tree 0x3F800001."""
    parts = torch.tensor([1.0, 2**-24, 2**-24, 2**-24])[:, None]
    assert COLLECTIVES.tree_sum(parts).view(torch.int32).item() == 0x3F800001
