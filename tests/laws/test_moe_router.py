"""Router laws: the order of choice is total, a token's routing does not depend on the tokens beside it."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.router import reference
from tests.laws.moe_layer import TOKENS, Moe, Sizes
from tests.support.bits import assert_same_bits, differing, poisoned_outputs
from tests.support.inputs import integers, normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, TARGET


def selector(place: str, experts: int, top_k: int, *, slots: str = "score", softmax: str = "selected",
             renormalise: bool = True, scaling: float = 1.0):  # fmt: skip
    attributes = {"hidden": 64, "experts": experts, "top_k": top_k, "softmax": softmax, "renormalise": renormalise}
    constants = {"product": "exact", "slots": slots}
    return render_kernel("router_topk", TARGET[place], {**attributes, "scaling": scaling}, constants)


def total_order(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """Sorted Python tuples: larger first, then the lower index, NaN as -inf."""
    keys = torch.where(scores.isnan(), -torch.inf, scores).tolist()
    return torch.tensor([[e for _, e in sorted((-v, e) for e, v in enumerate(row))[:top_k]] for row in keys])


@pytest.mark.parametrize("experts", [8, 128, 256, 512])
@pytest.mark.parametrize("top_k", [1, 2, 8, 10])
def test_ties_go_to_the_lower_expert(place: str, experts: int, top_k: int) -> None:
    top_k = min(top_k, experts)
    scores = normal(12, experts, seed=experts + top_k)
    scores[0] = 0.25  # all equal
    scores[1:4] = integers(3, experts, below=3, seed=1).float()  # many ties across the boundary
    scores[4, experts // 2 :] = scores[4].max() + 1  # the boundary lies inside the tie
    scores[5, ::2] = torch.nan
    scores[6, 1] = -torch.inf
    scores[7] = torch.where(torch.arange(experts) % 2 == 0, 0.0, -0.0)
    boundary = scores.sort(descending=True)[0]
    if top_k < experts:
        assert int((boundary[:, top_k - 1] == boundary[:, top_k]).sum()) >= 3, "no tie at the boundary"
    with poisoned_outputs():
        chosen, weights = selector(place, experts, top_k).select(scores.to(DEVICE[place]))
    assert_same_bits(chosen.cpu().long(), total_order(scores, top_k), "chosen")
    assert int(weights.isnan().sum()) == 0


def test_scores_rounded_to_bf16_choose_other_experts(place: str) -> None:
    """Control: near-ties that bf16 logits cannot tell apart."""
    scores = 1.0 + normal(64, 128, seed=3) * 1e-3
    module = selector(place, 128, 8)
    exact, _ = module.select(scores.to(DEVICE[place]))
    coarse, _ = module.select(scores.bfloat16().float().to(DEVICE[place]))
    assert_same_bits(exact.cpu().long(), total_order(scores, 8))
    assert differing(exact, coarse) > 0


@pytest.mark.parametrize("softmax", ["selected", "all"])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("scaling", [1.0, 2.5])
def test_weights_against_float64(place: str, softmax: str, renormalise: bool, scaling: float) -> None:
    """Six roundings in a row of at most top_k terms stay within 1e-6 of float64."""
    scores = normal(33, 40, seed=11)
    scores[0] += 80 * torch.arange(40)  # weights down to zero
    module = selector(place, 40, 6, softmax=softmax, renormalise=renormalise, scaling=scaling)
    chosen, weights = module.select(scores.to(DEVICE[place]))
    expected, wanted = reference(
        scores, torch.eye(40), top_k=6, softmax=softmax, renormalise=renormalise, scaling=scaling
    )
    assert_same_bits(chosen.cpu().long(), expected)
    assert (weights.cpu().double() - wanted).abs().max() < 1e-6 * scaling


def test_the_four_rules_of_softmax_differ(place: str) -> None:
    """Logits 2, 1, 0, -1 with two experts: 0.644 and 0.237 before, 0.731 and 0.269 after the selection."""
    scores = torch.tensor([[2.0, 1.0, 0.0, -1.0]], device=DEVICE[place])
    found = {
        (softmax, renormalise): selector(place, 4, 2, softmax=softmax, renormalise=renormalise).select(scores)[1].cpu()
        for softmax in ("selected", "all")
        for renormalise in (True, False)
    }
    assert torch.allclose(found["all", False], torch.tensor([[0.643914, 0.236883]]), atol=1e-5)  # published figures
    assert torch.allclose(found["selected", True], torch.tensor([[0.731059, 0.268941]]), atol=1e-5)
    assert differing(found["all", False], found["selected", True]) == 2


def test_slots_by_expert_are_the_same_choice_sorted(place: str) -> None:
    scores = normal(50, 64, seed=21).to(DEVICE[place])
    chosen, weights = selector(place, 64, 8, slots="score").select(scores)
    by_expert, moved = selector(place, 64, 8, slots="expert").select(scores)
    ordered, slot = chosen.sort(dim=1)
    assert_same_bits(by_expert, ordered)
    assert_same_bits(moved, weights.gather(1, slot))
    assert differing(chosen, by_expert) > 0


@pytest.mark.parametrize("product", ["exact", "ieee"])
def test_a_token_alone_is_the_token_in_any_batch(place: str, product: str) -> None:
    moe = Moe(place)
    s = moe.sizes
    attributes = {"hidden": s.hidden, "experts": s.experts, "top_k": s.top_k}
    rule = {"softmax": "selected", "renormalise": True, "scaling": 1.0}
    module = render_kernel("router_topk", TARGET[place], attributes | rule, {"product": product, "slots": "expert"})
    tokens = min(max(TOKENS[place]), 4096)
    x = moe.tokens(tokens, seed=5)
    scores = module.logits(x, moe.router_weight)
    chosen, weights = module.router(x, moe.router_weight)
    for row in {0, tokens // 2, tokens - 1}:
        assert_same_bits(module.logits(x[row : row + 1], moe.router_weight), scores[row : row + 1], "logits")
        alone = module.router(x[row : row + 1].contiguous(), moe.router_weight)
        assert_same_bits(alone[0], chosen[row : row + 1], "experts")
        assert_same_bits(alone[1], weights[row : row + 1], "weights")
    exact = x.double() @ moe.router_weight.double().T
    # The tensor cores keep two bits less than fp32 in their running sum, over hidden / 16 steps.
    assert (scores.double() - exact).abs().max() < 2e-5 * exact.abs().max()


def test_logits_are_not_tf32(place: str) -> None:
    """Integers up to 256 and their sums are exact in fp32 products of bf16; tf32 loses those past 2049."""
    size = Sizes(experts=8, top_k=2, hidden=64, width=128)
    moe = Moe(place, size)
    x = integers(16, 64, below=256, seed=1).to(torch.bfloat16).to(DEVICE[place])
    weight = integers(8, 64, below=256, seed=2).to(torch.bfloat16).to(DEVICE[place])
    exact = (x.double() @ weight.double().T).float()
    assert int((exact > 2049).sum()) > 100
    assert_same_bits(moe.router.logits(x, weight), exact)


def test_gradients_against_float64(place: str) -> None:
    for softmax, renormalise in (("selected", True), ("all", True), ("all", False)):
        attributes = {"hidden": 64, "experts": 16, "top_k": 4, "softmax": softmax, "renormalise": renormalise}
        module = render_kernel("router_topk", TARGET[place], {**attributes, "scaling": 1.5})
        x = normal(9, 64, seed=1, dtype="bf16", device=DEVICE[place]).requires_grad_()
        weight = normal(16, 64, seed=2, dtype="bf16", device=DEVICE[place], scale=0.2).requires_grad_()
        chosen, weights = module.router(x, weight)
        upstream = normal(9, 4, seed=3, device=DEVICE[place])
        found = torch.autograd.grad(weights, (x, weight), upstream)
        wide = [t.detach().double().requires_grad_() for t in (x, weight)]
        scores = wide[0] @ wide[1].T
        picked = scores.gather(1, chosen.long()) if softmax == "selected" else scores
        mass = picked.softmax(1)
        mass = mass if softmax == "selected" else mass.gather(1, chosen.long())
        wanted = (mass / mass.sum(1, keepdim=True) if renormalise else mass) * 1.5
        for ours, theirs in zip(found, torch.autograd.grad(wanted, wide, upstream.double()), strict=True):
            assert (ours.double() - theirs).norm() < 5e-3 * theirs.norm()  # one rounding to bf16


def test_refusals(place: str) -> None:
    module = selector(place, 8, 2)
    scores = normal(4, 8, seed=1).to(DEVICE[place])
    with pytest.raises(ValueError, match="float32"):
        module.select(scores.bfloat16())
    with pytest.raises(ValueError, match=r"\[T, 64\]"):
        module.logits(scores.bfloat16(), scores.bfloat16())
    empty, weights = module.select(scores[:0])
    assert empty.shape == weights.shape == (0, 2)
