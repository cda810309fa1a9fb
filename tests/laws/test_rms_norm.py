"""Laws of rms_norm_rows: a row's bits depend on the row alone, on every target and for every launch."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.rms_norm import reference
from isoexec_compiler.plan import Launch
from tests.support.apply_triton import stock_sums
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, normal, slices, wide
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, HOPPER, INTERPRETING, TARGET

NAME = "rms_norm_rows"
WIDTHS = (64, 96, 1024)
EPS = 1e-6
HALF_UNIT = {"bf16": 2.0**-8, "fp32": 2.0**-24}


def kernel(
    place: str, width: int = 96, gamma: str = "plain", dtype: str = "bf16", launch: Launch | None = None
) -> ModuleType:
    return render_kernel(NAME, TARGET[place], {"width": width, "eps": EPS, "gamma": gamma}, launch=launch, dtype=dtype)


def weights(width: int, place: str, dtype: str = "bf16") -> torch.Tensor:
    return normal(width, seed=9, dtype=dtype, device=DEVICE[place])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_row_alone_is_the_row_in_any_batch(place: str, width: int, dtype: str) -> None:
    module, w = kernel(place, width, dtype=dtype), weights(width, place, dtype)
    x = wide(batch(place), width, seed=1, dtype=dtype, device=DEVICE[place])
    with poisoned_outputs():
        whole = module.rms_norm(x, w)
        for first, last in slices(place):
            assert_same_bits(module.rms_norm(x[first:last], w), whole[first:last], f"rows {first} to {last}")
    assert whole.isfinite().all()


@pytest.mark.parametrize("gamma", ["plain", "one_plus"])
def test_the_fused_form_is_the_sum_then_the_norm(place: str, gamma: str) -> None:
    module, w = kernel(place, gamma=gamma), weights(96, place)
    add = render_kernel("residual_add_rows", TARGET[place], {"width": 96})
    x, residual = (hazards(batch(place), 96, seed=s, dtype="bf16", device=DEVICE[place]) for s in (2, 20))
    assert min(hazard_counts(x).values()) > 0
    with poisoned_outputs():
        y, total = module.add_rms_norm(x, residual, w)
    assert_same_bits(total, add.residual_add(x, residual))
    assert_same_bits(y, module.rms_norm(total, w))


def test_control_the_sum_rounded_after_the_norm_differs(place: str) -> None:
    module, w = kernel(place), weights(96, place)
    x, residual = (normal(64, 96, seed=s, dtype="bf16", device=DEVICE[place]) for s in (3, 4))
    late = reference(x.float() + residual.float(), w, eps=EPS, gamma="plain").to(torch.bfloat16)
    assert differing(module.add_rms_norm(x, residual, w)[0], late) > 0.05 * late.numel()


@pytest.mark.parametrize("rows", [1, 2, 16])
@pytest.mark.parametrize("num_warps", [1, 4, 16])
def test_free_launch_parameters_move_nothing(triton_place: str, rows: int, num_warps: int) -> None:
    x = wide(33, 96, seed=5, dtype="fp32", device=DEVICE[triton_place])
    w = weights(96, triton_place, "fp32")
    tuned = kernel(triton_place, dtype="fp32", launch=((None, {"rows": rows, "num_warps": num_warps}),))
    assert_same_bits(tuned.rms_norm(x, w), kernel(triton_place, dtype="fp32").rms_norm(x, w))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("gamma", ["plain", "one_plus"])
def test_triton_has_the_bits_of_the_cpu(triton_place: str, gamma: str, dtype: str) -> None:
    for width in WIDTHS:
        for x in (wide(65, width, seed=6, dtype=dtype), hazards(65, width, seed=7, dtype=dtype)):
            w = weights(width, "cpu", dtype)
            wanted = kernel("cpu", width, gamma, dtype).rms_norm(x, w)
            device = DEVICE[triton_place]
            found = kernel(triton_place, width, gamma, dtype).rms_norm(x.to(device), w.to(device))
            assert_same_bits(one_nan(found), one_nan(wanted), f"width {width}")


def test_control_another_order_of_the_sum_is_seen(place: str) -> None:
    """The library's sum, and our own of the reversed row, have other bits than the tree."""
    x = wide(65, 1024, seed=8, dtype="fp32", device=DEVICE[place])
    w = torch.ones(1024, device=DEVICE[place])
    ours = kernel(place, 1024, dtype="fp32").rms_norm(x, w)
    stock = x * (x.square().sum(-1, keepdim=True) * (1.0 / 1024) + EPS).sqrt().reciprocal() * w
    assert differing(ours, stock) > 0
    shifted = kernel(place, 1024, dtype="fp32").rms_norm(x.roll(1, dims=1), w).roll(-1, dims=1)
    assert differing(ours, shifted) > 0


@pytest.mark.skipif(not HOPPER, reason="layouts exist on a device only")
def test_control_a_stock_sum_moves_with_its_warps() -> None:
    x = wide(257, 1024, seed=8, device="cuda")
    assert differing(stock_sums(x, 1), stock_sums(x, 8)) > 0


@pytest.mark.parametrize("gamma", ["plain", "one_plus"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_accuracy(place: str, gamma: str, dtype: str) -> None:
    """One rounding to bf16; in fp32 the tree's height 10, halved by the root, and 8 further roundings."""
    module, w = kernel(place, 1024, gamma, dtype), weights(1024, place, dtype)
    x = normal(33, 1024, seed=10, dtype=dtype, device=DEVICE[place])
    exact = reference(x, w, eps=EPS, gamma=gamma)
    steps = 1.01 if dtype == "bf16" else 13
    assert ((module.rms_norm(x, w).double() - exact).abs() <= steps * HALF_UNIT[dtype] * exact.abs() + 1e-30).all()


def test_heads_are_read_in_place_and_odd_views_give_the_same_bits(place: str) -> None:
    module, w = kernel(place, 64), weights(64, place)
    packed = normal(17, 8 * 64, seed=11, dtype="bf16", device=DEVICE[place])
    heads = packed[:, 64 : 7 * 64].unflatten(1, (6, 64))
    assert not heads.is_contiguous()
    wanted = module.rms_norm(heads.contiguous(), w)
    assert_same_bits(module.rms_norm(heads, w), wanted)
    assert_same_bits(module.rms_norm(heads.transpose(0, 1), w).transpose(0, 1), wanted)
    spread = heads.transpose(1, 2).contiguous().transpose(1, 2)
    assert spread.stride(2) != 1
    assert_same_bits(module.rms_norm(spread, w), wanted)
    assert_same_bits(module.rms_norm(heads[3, 2], w), wanted[3, 2])
    assert module.rms_norm(heads[:0], w).shape == (0, 6, 64)


@pytest.mark.parametrize(("x", "w"), [((4, 95), 96), ((4, 96), 95)])
def test_wrong_shapes_are_refused(place: str, x: tuple[int, ...], w: int) -> None:
    with pytest.raises(ValueError, match=r"must be"):
        kernel(place).rms_norm(torch.zeros(x, dtype=torch.bfloat16), torch.zeros(w, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="bfloat16"):
        kernel(place).rms_norm(torch.zeros(4, 96), torch.zeros(96))


@pytest.mark.parametrize("gamma", ["plain", "one_plus"])
def test_gradients(place: str, gamma: str) -> None:
    """Against float64 autograd, with gamma away from one so that a factor too many would show."""
    module = kernel(place, 96, gamma, "fp32")
    x, residual = (normal(37, 96, seed=s, device=DEVICE[place]).requires_grad_() for s in (12, 13))
    w = (weights(96, place, "fp32").abs() + 0.5).requires_grad_()
    dy, dtotal = (normal(37, 96, seed=s, device=DEVICE[place]) for s in (14, 15))

    exact = [t.detach().double().requires_grad_() for t in (x, residual, w)]
    total = exact[0] + exact[1]
    torch.autograd.backward((reference(total, exact[2], eps=EPS, gamma=gamma), total), (dy.double(), dtotal.double()))
    torch.autograd.backward(module.add_rms_norm(x, residual, w), (dy, dtotal))
    for got, wanted in zip((x, residual, w), exact, strict=True):
        assert (got.grad - wanted.grad).abs().max() < 1e-5 * wanted.grad.abs().max()

    alone = x.detach().clone().requires_grad_()
    module.rms_norm(alone, w.detach()).backward(dy)
    lone = x.detach().double().requires_grad_()
    reference(lone, w.detach(), eps=EPS, gamma=gamma).backward(dy.double())
    assert (alone.grad - lone.grad).abs().max() < 1e-5 * lone.grad.abs().max()


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("width", [128, 1024, 5120])
def test_ptx(width: int) -> None:
    module = kernel("sm90", width)
    x, w = torch.empty(64, width, dtype=torch.bfloat16), torch.empty(width, dtype=torch.bfloat16)
    with compiled_launches() as compiled:
        module.rms_norm(x, w)
        module.add_rms_norm(x, x, w)
        module._gradients(x, w, x, x)
    assert len(compiled) == 3
    for variant in compiled:
        assert offences(variant.ptx) == ()
        assert re.search(r"ld\.global\.v[24]\.b32", variant.ptx)
        # The tree stays in registers and shuffles: only values that cross warps go through shared memory.
        assert variant.ptx.count("st.shared") <= 48
    # What follows a norm is a product: it may not be placed before the one in front of the sum has left.
    plain, added = (re.findall(r"griddepcontrol\.(\w+)", variant.ptx) for variant in compiled[:2])
    assert plain == ["launch_dependents", "wait"]
    assert added == ["wait", "launch_dependents"]
