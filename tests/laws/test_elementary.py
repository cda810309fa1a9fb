"""Our exp and log: accuracy, special values, and Triton text with the bits of the torch text."""

from __future__ import annotations

import importlib
from fractions import Fraction
from types import ModuleType

import pytest
import torch

from tests.support.bits import assert_same_bits, differing, one_nan
from tests.support.inputs import normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, TARGET

ATTRIBUTES = {"vocab": 64, "padded_vocab": 64, "temperature": 1.0}
SPECIAL = (0.0, -0.0, float("inf"), -float("inf"), float("nan"), 88.72, 88.73, -86.9, -87.1, 1e30, -1e30, 1e-42)


def _support(module: ModuleType, name: str) -> ModuleType:
    return importlib.import_module(f"{module.__name__.split('.')[0]}.{name}")


@pytest.fixture(scope="module")
def elementary() -> ModuleType:
    return _support(render_kernel("log_softmax_leaves", "cpu", ATTRIBUTES), "elementary")


def _exponents() -> torch.Tensor:
    sweep = torch.linspace(-86.9, 88.7, 400_001)
    return torch.cat((sweep, normal(200_000, seed=1), normal(200_000, seed=2) * 1e-3, torch.tensor(SPECIAL)))


def _units(computed: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Error in units of the last place of an fp32 of the exact result's size."""
    unit = torch.ldexp(torch.ones_like(exact), exact.frexp().exponent - 24)
    return ((computed.double() - exact) / unit).abs()


def test_exp_is_within_its_stated_error(elementary: ModuleType) -> None:
    x = _exponents()[: -len(SPECIAL)]
    assert _units(elementary.exp(x), x.double().exp()).max() < 1.6


def test_log_is_within_its_stated_error(elementary: ModuleType) -> None:
    x = torch.cat((torch.linspace(1, 300_000, 400_001), torch.logspace(-37, 38, 200_001), normal(99, seed=3).exp()))
    exact = x.double().log()
    assert _units(elementary.log(x), exact)[exact != 0].max() < 1.0


def test_special_values(elementary: ModuleType) -> None:
    inf = float("inf")
    got = elementary.exp(torch.tensor([0.0, -0.0, inf, 88.73, -inf, -88.0]))
    assert_same_bits(got, torch.tensor([1.0, 1.0, inf, inf, 0.0, 0.0]))
    assert_same_bits(elementary.log(torch.tensor([1.0, inf])), torch.tensor([0.0, inf]))
    assert elementary.exp(torch.tensor([float("nan")])).isnan().all()
    assert elementary.log(torch.tensor([float("nan")])).isnan().all()


def test_reduction_by_ln2_is_exact(elementary: ModuleType) -> None:
    """So that Triton may fuse its two steps: every product with an integer that occurs is an fp32 number."""
    n = torch.arange(-127, 130, dtype=torch.float64)
    for part in (elementary.LN2_HIGH, elementary.LN2_LOW):
        assert torch.equal((n * part).float().double(), n * part)


def test_square_root_is_correctly_rounded(elementary: ModuleType) -> None:
    """Exactly: the square of each neighbouring midpoint, in integers, lies on the other side of x."""
    x = torch.rand(20_000, generator=torch.Generator().manual_seed(5)) + torch.randint(0, 3, (20_000,)) + 2.0**-20
    root = elementary.sqrt(x)
    for value, got, below, above in zip(
        x.tolist(),
        root.tolist(),
        root.nextafter(torch.tensor(0.0)).tolist(),
        root.nextafter(torch.tensor(9.0)).tolist(),
        strict=True,
    ):
        low, high = (Fraction(got) + Fraction(neighbour) for neighbour in (below, above))
        assert (low / 2) ** 2 <= Fraction(value) <= (high / 2) ** 2


def test_control_library_exp_has_other_bits(elementary: ModuleType) -> None:
    x = normal(100_000, seed=4)
    assert differing(elementary.exp(x), x.exp()) > 1000


def test_triton_text_has_the_bits_of_the_torch_text(triton_place: str, elementary: ModuleType) -> None:
    module = _support(render_kernel("log_softmax_leaves", TARGET[triton_place], ATTRIBUTES), "elementary_triton")
    from tests.support.apply_triton import apply

    x = _exponents()
    positive = torch.cat((x[x > 2e-38], torch.logspace(-37, 38, 50_001)))
    for name, values in (("exp", x), ("log", positive)):
        got = apply(getattr(module, name), values.to(DEVICE[triton_place]))
        assert_same_bits(one_nan(got), one_nan(getattr(elementary, name)(values)), name)
