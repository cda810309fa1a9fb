"""Laws of the sigmoid gate: elementwise, one rounding, the same bits on every target."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.sigmoid_gate import reference
from tests.support.bits import assert_same_bits, differing, poisoned_outputs
from tests.support.inputs import ROWS, hazard_counts, hazards, normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, TARGET

WIDTH = 96
NAME = "sigmoid_gate_rows"


def inputs(place: str, rows: int, dtype: str = "bf16") -> tuple[torch.Tensor, torch.Tensor]:
    device = DEVICE[place]
    x = hazards(rows, WIDTH, seed=1, dtype=dtype, device=device)
    return x, normal(rows, WIDTH, seed=2, dtype=dtype, device=device, scale=8.0)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_alone_is_the_row_in_any_batch(place: str, dtype: str) -> None:
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype=dtype)
    x, gate = inputs(place, max(ROWS), dtype)
    assert min(hazard_counts(x).values()) > 0
    with poisoned_outputs():
        whole = kernel.sigmoid_gate(x, gate)
        for rows in ROWS:
            assert_same_bits(kernel.sigmoid_gate(x[:rows], gate[:rows]), whole[:rows], f"{rows} rows")
    assert kernel.sigmoid_gate(x[:0], gate[:0]).shape == (0, WIDTH)


def test_shares_of_the_width_and_strided_views_have_the_bits_of_the_whole(place: str) -> None:
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    x, gate = inputs(place, 33)
    whole = kernel.sigmoid_gate(x, gate)
    for size in (2, 4, 8):
        parts = [kernel.sigmoid_gate(a, b) for a, b in zip(x.chunk(size, 1), gate.chunk(size, 1), strict=True)]
        assert_same_bits(torch.cat(parts, 1), whole, f"{size} ranks")


@pytest.mark.parametrize("block", [256, 2048])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_free_launch_parameters_move_nothing(place: str, block: int, num_warps: int) -> None:
    x, gate = inputs(place, 17)
    launch = ((None, {"block": block, "num_warps": num_warps}),)
    tuned = render_kernel(NAME, TARGET[place], {"width": WIDTH}, launch=launch)
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    assert_same_bits(tuned.sigmoid_gate(x, gate), kernel.sigmoid_gate(x, gate))


def test_every_target_has_the_bits_of_the_cpu(place: str) -> None:
    x, gate = inputs("cpu", 257)
    wanted = render_kernel(NAME, "cpu", {"width": WIDTH}).sigmoid_gate(x, gate)
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    found = kernel.sigmoid_gate(x.to(DEVICE[place]), gate.to(DEVICE[place]))
    assert_same_bits(found.cpu(), wanted)


def test_control_a_gate_rounded_first_has_other_bits(place: str) -> None:
    x, gate = inputs(place, 257)
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    twice = (x.float() * torch.sigmoid(gate.float()).bfloat16().float()).bfloat16()
    assert differing(kernel.sigmoid_gate(x, gate), twice) > 1000


@pytest.mark.parametrize("value", [88.0, -88.0, float("inf"), float("-inf"), 0.0, -0.0])
def test_extreme_gates(place: str, value: float) -> None:
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    x, gate = inputs(place, 4, "fp32")
    x = x.nan_to_num().clamp(-1e6, 1e6)
    out = kernel.sigmoid_gate(x, torch.full_like(gate, value))
    assert out.isfinite().all()
    if value in (88.0, float("inf")):
        assert_same_bits(out, x)


def test_against_float64(place: str) -> None:
    """fp32: an exp within 1.6 ulp, an addition and a division: relative error below 3 * 2**-23 where exp is normal."""
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    x, gate = (normal(257, WIDTH, seed=s, device=DEVICE[place], scale=4.0) for s in (3, 4))
    wanted = reference(x, gate)
    assert ((kernel.sigmoid_gate(x, gate).double() - wanted).abs() <= wanted.abs() * 3 * 2.0**-23).all()


def test_gradients_against_float64(place: str) -> None:
    """fp32 arithmetic: relative error of each gradient below 1e-6 in norm."""
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    x, gate, incoming = (normal(33, WIDTH, seed=s, device=DEVICE[place]) for s in (5, 6, 7))
    leaves = [t.clone().requires_grad_() for t in (x, gate)]
    kernel.sigmoid_gate(*leaves).backward(incoming)
    exact = [t.double().requires_grad_() for t in (x, gate)]
    reference(*exact).backward(incoming.double())
    for found, wanted in zip(leaves, exact, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert (found.grad.double() - wanted.grad).norm() < 1e-6 * wanted.grad.norm()


@pytest.mark.parametrize("wrong", ["shape", "dtype", "width"])
def test_wrong_arguments_are_refused_in_a_sentence(place: str, wrong: str) -> None:
    kernel = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    x, gate = inputs(place, 4)
    bad = {"shape": (x, gate[:3]), "dtype": (x, gate.float()), "width": (x[:, :5], gate[:, :5])}[wrong]
    with pytest.raises(ValueError, match=r"must (be|have)"):
        kernel.sigmoid_gate(*bad)
