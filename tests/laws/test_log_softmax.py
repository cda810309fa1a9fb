"""Laws of log_softmax_leaves: one value for a row, whoever holds which part of the vocabulary."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.log_softmax import reference
from isoexec_compiler.registry import implementations
from tests.support.bits import assert_same_bits, bits, differing, one_nan, poison, poisoned_outputs
from tests.support.inputs import batch, integers, normal, slices
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME = "log_softmax_leaves"
CONSTANTS = {"leaves": 8, "block": 16 if INTERPRETING else 64, "lanes": 8 if INTERPRETING else 16}
# Leaves of 200 (interpreted: 40): blocks and a rest, the last leaf half padding.
VOCAB, PADDED = (300, 320) if INTERPRETING else (1500, 1600)
LEAF = PADDED // 8
INF = float("inf")
LEAVES = {
    "schedule": "leaves", "token_schedule": "leaves", "num_warps": 4, "finish_block": 1024, "stages": 1,
    "cluster_warps": 4,
}  # fmt: skip
ROWS = 3 if INTERPRETING else 9


def kernel(
    place: str,
    vocab: int = VOCAB,
    padded: int = PADDED,
    temperature: float = 1.0,
    constants: dict[str, int] | None = None,
    **launch: int | str,
) -> ModuleType:
    attributes = {"vocab": vocab, "padded_vocab": padded, "temperature": temperature}
    if INTERPRETING and not launch:
        launch = LEAVES
    table = ((None, launch),) if launch else None
    return render_kernel(NAME, TARGET[place], attributes, constants or CONSTANTS, launch=table)


def logits(rows: int, place: str, seed: int = 1, padded: int = PADDED) -> torch.Tensor:
    """Peaked rows, as a trained model's are, some of them far from zero."""
    values = normal(rows, padded, seed=seed, scale=4.0)
    values[:, 7] += 12.0
    values[1::3] -= 50.0
    return values.to(DEVICE[place])


def sharded(module: ModuleType, values: torch.Tensor, targets: torch.Tensor, ranks: int) -> torch.Tensor:
    """The targets' log-probabilities as `ranks` ranks compute them together."""
    share = values.shape[1] // ranks
    shards = [(values[:, r * share : (r + 1) * share], r * share) for r in range(ranks)]
    sums = torch.cat([module.shard_sums(shard, start=start) for shard, start in shards], 1)
    words = [module.shard_target(shard, targets, start=start).view(torch.int32) for shard, start in shards]
    joined = words[0]
    for word in words[1:]:
        joined = joined | word
    return module.finish(sums, joined.view(torch.float32))


def test_a_row_alone_is_the_row_in_any_batch(place: str) -> None:
    module, rows = kernel(place), batch(place)
    values, targets = logits(rows, place), integers(rows, below=VOCAB, seed=2, device=DEVICE[place])
    with poisoned_outputs():
        whole, chosen = module.log_softmax(values), module.token_logprobs(values, targets)
        for first, last in slices(place):
            part = slice(first, last)
            assert_same_bits(module.log_softmax(values[part]), whole[part], f"rows {first} to {last}")
            assert_same_bits(module.token_logprobs(values[part], targets[part]), chosen[part], f"{first} to {last}")
    assert_same_bits(whole.gather(1, targets[:, None])[:, 0], chosen, "selected")
    assert (whole[:, :VOCAB] <= 0).all()
    assert (whole[:, VOCAB:] == -INF).all()
    assert module.log_softmax(values[:0]).shape == (0, PADDED)
    assert module.token_logprobs(values[:0], targets[:0]).shape == (0,)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_together_have_the_bits_of_one(place: str, ranks: int) -> None:
    module = kernel(place)
    rows = min(17, batch(place))
    values, targets = logits(rows, place), integers(rows, below=VOCAB, seed=3, device=DEVICE[place])
    targets[3], targets[4] = -100, PADDED - 1
    values[2, targets[2]] = -0.0
    with poisoned_outputs():
        assert_same_bits(sharded(module, values, targets, ranks), module.token_logprobs(values, targets))


def test_control_a_chain_over_leaves_has_other_bits(place: str) -> None:
    module = kernel(place)
    pairs = module.shard_sums(logits(batch(place), place), start=0).unflatten(1, (8, 2))
    scaled = pairs[..., 1] * (pairs[..., 0] - pairs[..., 0].amax(1, keepdim=True)).exp()
    chain, tree = scaled[:, 0], scaled.clone()
    for leaf in range(1, 8):
        chain = chain + scaled[:, leaf]
    while tree.shape[1] > 1:
        tree = tree[:, 0::2] + tree[:, 1::2]
    assert differing(chain, tree[:, 0]) > 0


@pytest.mark.parametrize("pad", [0.0, 50.0, float("nan"), -INF, INF])
def test_the_padding_is_never_read_into_a_result(place: str, pad: float) -> None:
    module, values = kernel(place), logits(5, place)
    targets = integers(5, below=VOCAB, seed=4, device=DEVICE[place])
    cut, chosen = module.log_softmax(values[:, :VOCAB]), module.token_logprobs(values[:, :VOCAB], targets)
    values[:, VOCAB:] = pad
    assert_same_bits(module.log_softmax(values)[:, :VOCAB], cut)
    for ranks in (1, 8):
        assert_same_bits(sharded(module, values, targets, ranks), chosen)
    gradient = torch.ones(5, device=DEVICE[place])
    values.requires_grad_()
    module.token_logprobs(values, targets).backward(gradient)
    assert bits(values.grad[:, VOCAB:]).abs().sum() == 0
    assert values.grad.isfinite().all()


@pytest.mark.parametrize("vocab", [5, 63, 64, 65] if INTERPRETING else [5, 63, 64, 65, 1023, 1024, 1025])
def test_infinities_and_nan_follow_torch(place: str, vocab: int) -> None:
    module = kernel(place, vocab, -(-vocab // 8) * 8)
    values = normal(7, vocab, seed=5, device=DEVICE[place])
    values[0, 1:] = -INF
    values[1, :1] = -INF
    values[2] = -INF
    values[3, vocab // 2] = INF
    values[4, vocab - 1] = float("nan")
    values[5, : vocab // 2] = -INF
    values[6] = -0.0
    found, wanted = module.log_softmax(values), torch.log_softmax(values.double(), -1)
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found == -INF, wanted == -INF)
    finite = wanted.isfinite()
    assert (found[finite] - wanted[finite]).abs().max() < 1e-5
    assert not (found > 0).any()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_triton_has_the_bits_of_the_cpu_for_every_launch(triton_place: str, temperature: float) -> None:
    values, targets = logits(ROWS + 2, "cpu"), integers(ROWS + 2, below=VOCAB, seed=6)
    values[0, 3], values[1, 5], values[2], values[3, : VOCAB // 2] = INF, float("nan"), -INF, -INF
    cpu, device = kernel("cpu", temperature=temperature), DEVICE[triton_place]
    for warps, size, stages in ((1, 512, 1), (8, 2048, 2), (4, 1024, 4)):
        launch = LEAVES | {"num_warps": warps, "finish_block": size, "stages": stages}
        module = kernel(triton_place, temperature=temperature, **launch)
        there, wanted = values.to(device), targets.to(device)
        assert_same_bits(one_nan(module.log_softmax(there)), one_nan(cpu.log_softmax(values)))
        assert_same_bits(one_nan(module.token_logprobs(there, wanted)), one_nan(cpu.token_logprobs(values, targets)))
        assert_same_bits(one_nan(sharded(module, there, wanted, 4)), one_nan(sharded(cpu, values, targets, 4)))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_accuracy(place: str, temperature: float) -> None:
    """z and its distance to the maximum are rounded, each within half a unit of at most 128; the logarithm of the sum,
    whose relative error is a few units, adds less than one unit of 8."""
    values = logits(min(17, batch(place)), place)
    found = kernel(place, temperature=temperature).log_softmax(values)[:, :VOCAB]
    exact = reference(values, vocab=VOCAB, temperature=temperature)
    assert (found - exact).abs().max() < 4 * 128 * 2.0**-24


def test_control_the_library_has_other_bits(place: str) -> None:
    values = logits(min(17, batch(place)), place)[:, :VOCAB]
    assert differing(kernel(place).log_softmax(values), values.log_softmax(-1)) > 100


def test_known_answer(place: str) -> None:
    module = kernel(place, 6, 8)
    values = torch.tensor([[0.1, -0.2, 1.7, 0.3, 1.2, -0.5]], device=DEVICE[place])
    found = module.token_logprobs(values, torch.tensor([4], device=DEVICE[place]))
    assert abs(found.item() + 1.3395806963425134) < 2.0**-23


def test_temperature_is_applied_once_and_by_every_function(place: str) -> None:
    """A power of two scales exactly, so half the temperature is twice the logits."""
    values, targets = logits(5, place), integers(5, below=VOCAB, seed=7, device=DEVICE[place])
    half, one = kernel(place, temperature=0.5), kernel(place)
    assert_same_bits(half.log_softmax(values), one.log_softmax(values * 2))
    assert_same_bits(sharded(half, values, targets, 2), sharded(one, values * 2, targets, 2))


def test_views_and_refusals(place: str) -> None:
    module, wide = kernel(place), poison((5, 2 * PADDED), device=DEVICE[place])
    wide[:, :PADDED] = logits(5, place)
    view, targets = wide[:, :PADDED], integers(5, below=VOCAB, seed=8, device=DEVICE[place])
    assert_same_bits(module.token_logprobs(view, targets), module.token_logprobs(view.contiguous(), targets))
    for wrong in (view[:, : 5 * LEAF], view.double(), view[0]):
        with pytest.raises(ValueError, match="logits must be"):
            module.log_softmax(wrong)
    with pytest.raises(ValueError, match="targets must be"):
        module.token_logprobs(view, targets.int())
    with pytest.raises(ValueError, match="multiple of the leaf"):
        module.shard_sums(view[:, :LEAF], start=LEAF // 2)
    with pytest.raises(ValueError, match="whole leaves"):
        module.shard_sums(view[:, : LEAF + 1], start=LEAF)
    with pytest.raises(ValueError, match="all leaves"):
        module.finish(module.shard_sums(view[:, :LEAF], start=LEAF), targets.float())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_gradients(place: str, temperature: float) -> None:
    module = kernel(place, temperature=temperature)
    values = logits(ROWS, place).requires_grad_()
    targets = integers(ROWS, below=VOCAB, seed=9, device=DEVICE[place])
    gradient, chosen = normal(ROWS, PADDED, seed=10, device=DEVICE[place]), normal(ROWS, seed=11, device=DEVICE[place])
    exact = values.detach().double().requires_grad_()
    logprobs = reference(exact, vocab=VOCAB, temperature=temperature)
    (wanted,) = torch.autograd.grad(logprobs, exact, gradient[:, :VOCAB].double(), retain_graph=True)
    (picked,) = torch.autograd.grad(logprobs.gather(1, targets[:, None])[:, 0], exact, chosen.double())
    with poisoned_outputs():
        found = torch.autograd.grad(module.log_softmax(values), values, gradient)[0]
        assert (found - wanted).abs().max() < 1e-4
        found = torch.autograd.grad(module.token_logprobs(values, targets), values, chosen)[0]
        assert (found - picked).abs().max() < 1e-5

        detached = values.detach()
        normalisers = module.normaliser(module.shard_sums(detached, start=0))
        shards = [
            module.shard_gradient(detached[:, s : s + 2 * LEAF], targets, normalisers, chosen, start=s)
            for s in range(0, PADDED, 2 * LEAF)
        ]
    assert_same_bits(torch.cat(shards, 1), found)


@pytest.mark.skipif(INTERPRETING, reason="the interpreter copies whole storages")
def test_a_row_past_the_reach_of_int32_is_itself(place: str) -> None:
    """A view whose rows lie 2^29 elements apart: the fifth starts past 2^31, without so much memory being touched."""
    module, values = kernel(place), logits(5, place)
    view = torch.empty(4 * 2**29 + PADDED, device=DEVICE[place]).as_strided((5, PADDED), (2**29, 1))
    view.copy_(values)
    assert_same_bits(module.log_softmax(view), module.log_softmax(values))


def test_recommended_constants_fit_published_vocabularies() -> None:
    known = implementations()[NAME]
    for padded in (256, 32000, 151936, 248320):
        attributes = {"vocab": padded, "padded_vocab": padded, "temperature": 1.0}
        constants = known.recommend(attributes).constants
        assert list(known.problems(attributes, constants)) == []
        assert all(constants[name] in field.choices for name, field in known.constants.items())
    unfit = {"vocab": 151936, "padded_vocab": 151900, "temperature": 1.0}
    assert len(list(known.problems(unfit, {"leaves": 8, "block": 16, "lanes": 32}))) == 3
