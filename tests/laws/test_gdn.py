"""Laws of the exact gated delta rules: prefill, any split, resume and decode give a row the same bits."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from isoexec_compiler.ops.gated_delta_rule import reference
from isoexec_compiler.registry import implementations
from tests.laws.gdn_inputs import ATTRIBUTES, LENGTHS, edges, extend, integers, kernel, poisoned, rows, steps
from tests.support.bits import assert_same_bits, differing, poison, poisoned_outputs
from tests.support.targets import DEVICE, INTERPRETING, TARGET

EXACT = ("gdn_rxc", "gdn_cpr", "gdn_recurrent_everywhere") + (() if INTERPRETING else ("gdn_chunk_everywhere",))
SPLITS = (33,) if INTERPRETING else (0, 1, 33, 64, 100)
TOKENS = sum(LENGTHS)


def slots(place: str) -> torch.Tensor:
    return torch.arange(len(LENGTHS), 0, -1, dtype=torch.int32, device=DEVICE[place])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("implementation", EXACT)
def test_prefill_then_resume_is_the_whole(place: str, implementation: str, split: int) -> None:
    module, given = kernel(implementation, place), rows(TOKENS, place, seed=split)
    with poisoned_outputs():
        whole = module.gated_delta_rule(**given, cu_seqlens=edges(LENGTHS, place))
        found, caches = torch.full_like(whole, torch.nan), poisoned(module, len(LENGTHS) + 1, place)
        first, last = [min(split, n) for n in LENGTHS], list(LENGTHS)
        for begins, ends in (([0] * len(LENGTHS), first), (first, last)):
            if ends != begins:
                index, out = extend(module, given, LENGTHS, begins, ends, caches, slots(place), place)
                found[index] = out
    assert whole.isfinite().all()
    assert_same_bits(found, whole)


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr"])
def test_a_resume_at_a_chunk_edge_needs_no_gathered_row(place: str, implementation: str) -> None:
    module, given, lengths, one = kernel(implementation, place), rows(80, place, seed=13), (80,), integers([1], place)
    whole, caches = module.gated_delta_rule(**given, cu_seqlens=edges(lengths, place)), poisoned(module, 2, place)
    _, first = extend(module, given, lengths, [0], [64], caches, one, place, aligned=True)
    _, rest = extend(module, given, lengths, [64], [80], caches, one, place, aligned=True)
    assert_same_bits(torch.cat([first, rest]), whole)


@pytest.mark.parametrize("implementation", [name for name in EXACT if name != "gdn_chunk_everywhere"])
def test_row_by_row_decode_is_the_whole(place: str, implementation: str) -> None:
    """From nothing, across chunk edges, lanes dropping out; then once more from a prefill that ends inside a chunk."""
    dtypes = implementations()[implementation].dtypes[TARGET[place]]
    for dtype, prefill in product(dtypes, (0, 50)):
        module, given = kernel(implementation, place, dtype), rows(TOKENS, place, seed=9, dtype=dtype)
        whole = module.gated_delta_rule(**given, cu_seqlens=edges(LENGTHS, place))
        caches, found = poisoned(module, len(LENGTHS) + 1, place), torch.full_like(whole, torch.nan)
        if prefill:
            ends = [min(prefill, n) for n in LENGTHS]
            index, out = extend(module, given, LENGTHS, [0] * len(LENGTHS), ends, caches, slots(place), place)
            found[index] = out
        steps(module, given, LENGTHS, prefill, TOKENS, caches, slots(place), found, place)
        assert_same_bits(found, whole, f"decode after {prefill} rows")


@pytest.mark.parametrize("implementation", EXACT)
def test_neighbours_move_nothing(place: str, implementation: str) -> None:
    module, given = kernel(implementation, place), rows(TOKENS, place, seed=3)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges(LENGTHS, place))
    start = 0
    for length in LENGTHS:
        part = {name: x[start : start + length] for name, x in given.items()}
        alone = module.gated_delta_rule(**part, cu_seqlens=edges((length,), place))
        assert_same_bits(alone, whole[start : start + length], f"{length} rows alone")
        start += length


@pytest.mark.parametrize("implementation", EXACT)
def test_empty_sequences_move_nothing(place: str, implementation: str) -> None:
    module, given = kernel(implementation, place), rows(6, place, seed=14)
    caches, four = poisoned(module, 5, place), integers([4, 3, 2, 1], place)
    whole = module.gated_delta_rule(**given, cu_seqlens=integers([0, 5, 6], place))
    assert_same_bits(module.gated_delta_rule(**given, cu_seqlens=integers([0, 0, 5, 5, 6], place)), whole)
    _, found = extend(module, given, (0, 5, 0, 1), [0] * 4, [0, 5, 0, 1], caches, four, place)
    assert_same_bits(found, whole)
    for cache in (caches,) if isinstance(caches, torch.Tensor) else caches:
        assert cache[[0, 2, 4]].isnan().all()


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr", "gdn_recurrent_everywhere", "gdn_native_step"])
def test_null_lanes_touch_nothing(place: str, implementation: str) -> None:
    module, given = kernel(implementation, place), rows(3, place, seed=4)
    caches = poisoned(module, 4, place)
    out = module.gated_delta_step(
        **given, state=caches, slots=integers([0, -1, 0], place), positions=integers([0, 63, 64], place)
    )
    assert_same_bits(out, torch.zeros_like(out))
    for cache in (caches,) if isinstance(caches, torch.Tensor) else caches:
        assert cache.isnan().all()


def test_rejected_rows_roll_back(place: str) -> None:
    """Drafts dropped inside the open chunk leave no trace; verified without commit, they leave none at all."""
    module, given, drafts = kernel("gdn_rxc", place), rows(44, place, seed=5), rows(44, place, seed=6)
    lengths, one = (44,), integers([1], place)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges(lengths, place))
    caches, found = poisoned(module, 2, place), torch.full_like(whole, torch.nan)
    steps(module, given, lengths, 0, 30, caches, one, found, place)
    steps(module, drafts, lengths, 30, 36, caches, one, poison(tuple(whole.shape), whole.dtype, DEVICE[place]), place)
    before = [cache.clone() for cache in caches]
    _, verified = extend(module, drafts, lengths, [30], [44], caches, one, place, commit=False)
    for cache, kept in zip(caches, before, strict=True):
        assert_same_bits(cache, kept, "a verification without commit")
    steps(module, given, lengths, 30, 44, caches, one, found, place)
    assert_same_bits(found, whole)
    assert differing(verified, whole[30:]) > 0


@pytest.mark.parametrize("correlated", [0.0, 0.9])
@pytest.mark.parametrize("implementation", [*EXACT, "gdn_native_chunk"])
def test_outputs_and_gradients_against_float64(place: str, implementation: str, correlated: float) -> None:
    """Tolerances are those of bf16 operands: 2^-9 a rounding, gathered over a chunk of nearly equal keys."""
    module, given = kernel(implementation, place), rows(TOKENS, place, seed=7, correlated=correlated)
    cu = edges(LENGTHS, place)
    leaves = {name: x.requires_grad_() for name, x in given.items()}
    exact = {name: x.detach().double().requires_grad_() for name, x in given.items()}
    out, (truth, _) = module.gated_delta_rule(**leaves, cu_seqlens=cu), reference(**exact, cu_seqlens=cu, scale=0.125)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(8)).to(out)
    found = torch.autograd.grad(out, tuple(leaves.values()), grad)
    wanted = torch.autograd.grad(truth, tuple(exact.values()), grad.double())
    for name, a, b in zip(("out", *leaves), (out, *found), (truth, *wanted), strict=True):
        error = float((a.double() - b).norm() / b.norm())
        assert error < (0.03 if correlated else 0.008), f"{name}: {error:.1e}"


@pytest.mark.parametrize("implementation", EXACT)
def test_degenerate_gates(place: str, implementation: str) -> None:
    """beta = 0 writes nothing, so every output is +-0; g = 0 is the rule without decay."""
    module, given = kernel(implementation, place), rows(70, place, seed=10)
    cu = edges((70,), place)
    nothing = module.gated_delta_rule(**{**given, "beta": torch.zeros_like(given["beta"])}, cu_seqlens=cu)
    assert not nothing.any()
    open_gates = {**given, "g": torch.zeros_like(given["g"]), "beta": torch.ones_like(given["beta"])}
    out, (truth, _) = (
        module.gated_delta_rule(**open_gates, cu_seqlens=cu),
        reference(**open_gates, cu_seqlens=cu, scale=0.125),
    )
    assert float((out.double() - truth).norm() / truth.norm()) < 0.01


@pytest.mark.parametrize("implementation", [*EXACT, "gdn_native_chunk"])
@pytest.mark.parametrize("cu", [[1, 5], [0, 6, 4, 5], [0, 4], [0, 57, 59, 64]])
def test_malformed_lists_are_refused(implementation: str, cu: list[int]) -> None:
    with pytest.raises(ValueError, match="cu_seqlens"):
        kernel(implementation, "cpu").gated_delta_rule(**rows(5, "cpu"), cu_seqlens=integers(cu, "cpu"))


@pytest.mark.parametrize("name", ["g", "beta"])
def test_rounded_gates_are_refused(name: str) -> None:
    given = rows(5, "cpu")
    with pytest.raises(ValueError, match="float32"):
        kernel("gdn_rxc", "cpu").gated_delta_rule(
            **{**given, name: given[name].bfloat16()}, cu_seqlens=edges((5,), "cpu")
        )


def test_control_the_native_pair_is_not_exact(place: str) -> None:
    """A split moves bits of the native chunk form, and its step those of its prefill: the laws above can fail."""
    chunk, step, given = kernel("gdn_native_chunk", place), kernel("gdn_native_step", place), rows(70, place, seed=11)
    whole, one = chunk.gated_delta_rule(**given, cu_seqlens=edges((70,), place)), integers([1], place)
    caches = poisoned(chunk, 2, place)
    extend(chunk, given, (70,), [0], [50], caches, one, place)
    _, split = extend(chunk, given, (70,), [50], [70], caches.clone(), one, place)
    assert differing(split, whole[50:]) > 0
    found = torch.full_like(whole, torch.nan)
    steps(step, given, (70,), 50, 70, caches, one, found, place)
    assert differing(found[50:], whole[50:]) > 0


def test_a_rounded_state_is_refused() -> None:
    known = implementations()["gdn_rxc"]
    constants = dict(known.recommend(ATTRIBUTES).constants)
    assert not list(known.problems(ATTRIBUTES, constants))
    assert any("fp32" in sentence for sentence in known.problems(ATTRIBUTES, {**constants, "state": "bf16"}))


def test_equal_constants_equal_bits(place: str) -> None:
    """`exact_with` of the registry: one function under two names, in every case that both offer."""
    given, cu, one = rows(70, place, seed=12), edges((70,), place), integers([1], place)
    pairs = {
        (name, other) for name in implementations() for other in implementations()[name].exact_with if "gdn" in name
    }
    for pair in pairs:
        modules = [kernel(name, place) for name in pair]
        if all(hasattr(module, "gated_delta_rule") for module in modules):
            assert_same_bits(*(module.gated_delta_rule(**given, cu_seqlens=cu) for module in modules))
        row = {name: x[:1] for name, x in given.items()}
        states = [poisoned(module, 2, place) for module in modules]
        outs = [
            module.gated_delta_step(**row, state=state, slots=one, positions=one - 1)
            for module, state in zip(modules, states, strict=True)
        ]
        assert_same_bits(*outs, "a decode step")
    assert pairs
