"""Laws of causal_conv_rows: a row sees its last tokens wherever they lie, so a sequence may be split at any token."""

from __future__ import annotations

import re

import pytest
import torch

from isoexec_compiler.ops.causal_conv import reference
from isoexec_compiler.plan import Launch
from tests.support.bits import assert_same_bits, differing, poison, poisoned_outputs
from tests.support.inputs import normal, wide
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME = "causal_conv_rows"
CHANNELS, TAPS = 96, 4
LENGTHS = (5, 0, 1, 17, 3, 0, 37)


def kernel(place: str, dtype: str = "bf16", launch: Launch | None = None):  # type: ignore[no-untyped-def]
    attributes = {"channels": CHANNELS, "width": TAPS, "bias": False}
    return render_kernel(NAME, TARGET[place], attributes, dtype=dtype, launch=launch)


def edges(lengths: tuple[int, ...], place: str) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(DEVICE[place])


def integers(values: list[int], place: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE[place])


def inputs(place: str, rows: int = sum(LENGTHS), dtype: str = "bf16") -> tuple[torch.Tensor, torch.Tensor]:
    x = wide(rows, CHANNELS, seed=1, dtype=dtype, device=DEVICE[place]).clamp(-50, 50)
    return x, normal(CHANNELS, TAPS, seed=2, dtype=dtype, device=DEVICE[place])


def new_state(place: str, slots: int = 9) -> torch.Tensor:
    return poison((slots, TAPS - 1, CHANNELS), torch.bfloat16, DEVICE[place])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_sequence_alone_is_the_sequence_in_any_pack(place: str, dtype: str) -> None:
    module, (x, w) = kernel(place, dtype), inputs(place, dtype=dtype)
    with poisoned_outputs():
        whole = module.causal_conv(x, w, None, edges(LENGTHS, place))
        assert whole.isfinite().all()
        start = 0
        for length in LENGTHS:
            alone = module.causal_conv(x[start : start + length], w, None, edges((length,), place))
            assert_same_bits(alone, whole[start : start + length], f"length {length}")
            start += length


@pytest.mark.parametrize("split", [1, 2, 3, 4, 19, 36])
def test_a_sequence_split_at_any_token_has_the_bits_of_the_whole(place: str, split: int) -> None:
    """The state starts as NaN: nothing before the sequence's own start is read."""
    module, (x, w) = kernel(place), inputs(place, 37)
    whole = module.causal_conv(x, w, None, edges((37,), place))
    state, slot = new_state(place), integers([3], place)
    with poisoned_outputs():
        first = module.causal_conv_extend(x[:split], w, None, edges((split,), place), state, slot, integers([0], place))
        rest = module.causal_conv_extend(
            x[split:], w, None, edges((37 - split,), place), state, slot, integers([split], place)
        )
    assert_same_bits(torch.cat((first, rest)), whole)
    assert_same_bits(state[3], x[-(TAPS - 1) :])
    assert state[[0, 1, 2, 4]].isnan().all()


def test_token_by_token_has_the_bits_of_the_whole(place: str) -> None:
    module, (x, w) = kernel(place), inputs(place, 3 * 12)
    x = x.unflatten(0, (3, 12))
    whole = module.causal_conv(x.flatten(0, 1), w, None, edges((12,) * 3, place)).unflatten(0, (3, 12))
    state, slots = new_state(place), integers([5, 2, 7], place)
    for t in range(12):
        held = integers([t] * 3, place)
        assert_same_bits(
            module.causal_conv_step(x[:, t].contiguous(), w, None, state, slots, held), whole[:, t], f"token {t}"
        )
    for lane, slot in enumerate((5, 2, 7)):
        assert_same_bits(state[slot], x[lane, -(TAPS - 1) :])


def test_a_ragged_batch_of_prefills_and_decodes_is_each_alone(place: str) -> None:
    """Lanes with 0, 1 and more new rows together; then null lanes."""
    module, (x, w) = kernel(place), inputs(place)
    whole = module.causal_conv(x, w, None, edges(LENGTHS, place))
    state, slots = new_state(place), integers([1, 2, 3, 4, 5, 6, 7], place)
    held = [min(2, length) for length in LENGTHS]
    starts = edges(LENGTHS, place).tolist()
    heads = torch.cat([x[s : s + h] for s, h in zip(starts[:-1], held, strict=True)])
    tails = torch.cat([x[s + h : e] for s, h, e in zip(starts[:-1], held, starts[1:], strict=True)])
    module.causal_conv_extend(heads, w, None, edges(tuple(held), place), state, slots, integers([0] * 7, place))
    rest = tuple(n - h for n, h in zip(LENGTHS, held, strict=True))
    found = module.causal_conv_extend(tails, w, None, edges(rest, place), state, slots, integers(held, place))
    wanted = torch.cat([whole[s + h : e] for s, h, e in zip(starts[:-1], held, starts[1:], strict=True)])
    assert_same_bits(found, wanted)
    kept = state.clone()
    null = module.causal_conv_step(x[:2], w, None, state, integers([0, -1], place), integers([9, 9], place))
    assert_same_bits(null, module.causal_conv(x[:2], w, None, edges((1, 1), place)))
    assert_same_bits(state, kept)


def test_shares_of_the_channels_have_the_bits_of_the_whole(place: str) -> None:
    module, (x, w) = kernel(place), inputs(place)
    whole = module.causal_conv(x, w, None, edges(LENGTHS, place))
    for size in (2, 4, 8):
        parts = [
            module.causal_conv(a, b.contiguous(), None, edges(LENGTHS, place))
            for a, b in zip(x.chunk(size, 1), w.chunk(size, 0), strict=True)
        ]
        assert_same_bits(torch.cat(parts, 1), whole, f"{size} ranks")


@pytest.mark.parametrize(("rows", "block", "num_warps"), [(1, 64, 1), (16, 1024, 8), (4, 128, 2)])
def test_free_launch_parameters_move_nothing(triton_place: str, rows: int, block: int, num_warps: int) -> None:
    x, w = inputs(triton_place)
    tuned = kernel(triton_place, launch=((None, {"rows": rows, "block": block, "num_warps": num_warps}),))
    starts = edges(LENGTHS, triton_place)
    assert_same_bits(tuned.causal_conv(x, w, None, starts), kernel(triton_place).causal_conv(x, w, None, starts))


def test_triton_has_the_bits_of_the_cpu(triton_place: str) -> None:
    x, w = inputs("cpu")
    wanted = kernel("cpu").causal_conv(x, w, None, edges(LENGTHS, "cpu"))
    device = DEVICE[triton_place]
    assert_same_bits(
        kernel(triton_place).causal_conv(x.to(device), w.to(device), None, edges(LENGTHS, triton_place)).cpu(), wanted
    )


def test_control_taps_added_from_the_newest_on_have_other_bits(place: str) -> None:
    x, w = inputs(place, 257, "fp32")
    ours = kernel(place, "fp32").causal_conv(x, w, None, edges((257,), place))
    padded = torch.cat((x.new_zeros(TAPS - 1, CHANNELS), x))
    z = sum(padded[TAPS - 1 - back : len(padded) - back] * w[:, TAPS - 1 - back] for back in range(TAPS))
    assert differing(ours, z / (1 + (-z).exp())) > 0.05 * ours.numel()


def test_accuracy(place: str) -> None:
    """fp32: four products and three sums, an exp and a division; relative to the sum of the taps' magnitudes."""
    x, w = (normal(*shape, seed=s, device=DEVICE[place]) for shape, s in (((65, CHANNELS), 3), ((CHANNELS, TAPS), 4)))
    starts = edges((30, 35), place)
    found, exact = kernel(place, "fp32").causal_conv(x, w, None, starts), reference(x, w, None, starts)
    assert ((found.double() - exact).abs() <= 8 * 2.0**-24 * (1 + exact.abs()) * 4).all()


def test_gradients(place: str) -> None:
    """Against float64 autograd; the sequences' edges pass no gradient."""
    module, starts = kernel(place, "fp32"), edges(LENGTHS, place)
    leaves = [
        normal(*shape, seed=s, device=DEVICE[place]).requires_grad_()
        for shape, s in (((63, CHANNELS), 5), ((CHANNELS, TAPS), 6))
    ]
    incoming = normal(63, CHANNELS, seed=7, device=DEVICE[place])
    exact = [t.detach().double().requires_grad_() for t in leaves]
    module.causal_conv(*leaves, None, starts).backward(incoming)
    reference(*exact, None, starts).backward(incoming.double())
    for got, wanted in zip(leaves, exact, strict=True):
        assert (got.grad - wanted.grad).abs().max() < 1e-5 * wanted.grad.abs().max()


@pytest.mark.parametrize("wrong", [[0, 3], [0, 5, 4], [1, 4]], ids=["too few rows", "falling", "late start"])
def test_malformed_edges_are_refused(wrong: list[int]) -> None:
    x, w = inputs("cpu", 4)
    with pytest.raises(ValueError, match="cu_seqlens must"):
        kernel("cpu").causal_conv(x, w, None, torch.tensor(wrong, dtype=torch.int32))


def test_wrong_arguments_are_refused_in_a_sentence(place: str) -> None:
    module, (x, w) = kernel(place), inputs(place, 4)
    one = integers([1], place)
    with pytest.raises(ValueError, match="x must be"):
        module.causal_conv(x[:, :5], w[:5], None, edges((4,), place))
    with pytest.raises(ValueError, match=r"must be torch\.bfloat16"):
        module.causal_conv(x.float(), w.float(), None, edges((4,), place))
    with pytest.raises(ValueError, match="state must be"):
        module.causal_conv_step(x[:1], w, None, new_state(place).float(), one, one)
    with pytest.raises(ValueError, match="slots and positions must be"):
        module.causal_conv_step(x[:2], w, None, new_state(place), one, one)


def test_no_rows(place: str) -> None:
    module, (x, w) = kernel(place), inputs(place)
    assert module.causal_conv(x[:0], w, None, edges((0, 0), place)).shape == (0, CHANNELS)
    state = new_state(place)
    empty = module.causal_conv_extend(
        x[:0], w, None, edges((0,), place), state, integers([1], place), integers([0], place)
    )
    assert empty.shape == (0, CHANNELS)


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    module, (x, w) = kernel("sm90"), inputs("cpu")
    state, slots = new_state("cpu"), integers(list(range(1, 8)), "cpu")
    with compiled_launches() as compiled:
        module.causal_conv(x, w, None, edges(LENGTHS, "cpu"))
        module.causal_conv_extend(x, w, None, edges(LENGTHS, "cpu"), state, slots, slots)
        module.causal_conv_step(x[:7], w, None, state, slots, slots)
    assert len(compiled) == 7  # two of them the refusals of malformed lists
    for variant in compiled:
        # The fused operations of exp have exact products; those of the taps are apart.
        assert offences(variant.ptx, allowed=("fused multiply-add",)) == ()
        assert re.search(r"ld\.global", variant.ptx)
