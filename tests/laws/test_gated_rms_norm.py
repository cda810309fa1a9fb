"""Laws of gated_rms_norm_rows: a row's bits depend on the row and its gate alone, on every target."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.gated_rms_norm import reference
from isoexec_compiler.plan import Launch
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, normal, slices, wide
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, EPS = "gated_rms_norm_rows", 1e-6


def kernel(place: str, width: int = 96, dtype: str = "bf16", launch: Launch | None = None) -> ModuleType:
    return render_kernel(NAME, TARGET[place], {"width": width, "eps": EPS}, launch=launch, dtype=dtype)


def others(rows: int, width: int, place: str, dtype: str = "bf16") -> tuple[torch.Tensor, torch.Tensor]:
    """A gate and a weight."""
    device = DEVICE[place]
    gate = normal(rows, 1, width, seed=21, dtype=dtype, device=device, scale=4.0)
    return gate, normal(width, seed=22, dtype=dtype, device=device)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("width", [64, 96, 128])
def test_a_row_alone_is_the_row_in_any_batch(place: str, width: int, dtype: str) -> None:
    module, (gate, w) = kernel(place, width, dtype), others(batch(place), width, place, dtype)
    x = wide(batch(place), 1, width, seed=1, dtype=dtype, device=DEVICE[place])
    with poisoned_outputs():
        whole = module.gated_rms_norm(x, gate, w)
        for first, last in slices(place):
            part = module.gated_rms_norm(x[first:last], gate[first:last], w)
            assert_same_bits(part, whole[first:last], f"rows {first} to {last}")
    assert whole.isfinite().all()
    assert module.gated_rms_norm(x[:0], gate[:0], w).shape == (0, 1, width)


def test_the_gate_is_read_in_place(place: str) -> None:
    """The gate is a part of the projection's row; heads of both are views."""
    module, (_, w) = kernel(place, 64), others(1, 64, place)
    packed = normal(17, 12 * 64, seed=2, dtype="bf16", device=DEVICE[place])
    x, gate = packed[:, : 6 * 64].unflatten(1, (6, 64)), packed[:, 6 * 64 :].unflatten(1, (6, 64))
    wanted = module.gated_rms_norm(x.contiguous(), gate.contiguous(), w)
    assert_same_bits(module.gated_rms_norm(x, gate, w), wanted)
    assert_same_bits(module.gated_rms_norm(x.transpose(0, 1), gate.transpose(0, 1), w).transpose(0, 1), wanted)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_free_launch_parameters_move_nothing(triton_place: str, rows: int, num_warps: int) -> None:
    x, (gate, w) = wide(33, 1, 96, seed=3, device=DEVICE[triton_place]), others(33, 96, triton_place, "fp32")
    tuned = kernel(triton_place, dtype="fp32", launch=((None, {"rows": rows, "num_warps": num_warps}),))
    assert_same_bits(tuned.gated_rms_norm(x, gate, w), kernel(triton_place, dtype="fp32").gated_rms_norm(x, gate, w))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_triton_has_the_bits_of_the_cpu(triton_place: str, dtype: str) -> None:
    gate, w = others(65, 96, "cpu", dtype)
    device = DEVICE[triton_place]
    for x in (wide(65, 1, 96, seed=4, dtype=dtype), hazards(65, 1, 96, seed=5, dtype=dtype)):
        found = kernel(triton_place, dtype=dtype).gated_rms_norm(x.to(device), gate.to(device), w.to(device))
        assert_same_bits(one_nan(found), one_nan(kernel("cpu", dtype=dtype).gated_rms_norm(x, gate, w)))
    assert min(hazard_counts(x).values()) > 0


def test_control_a_norm_rounded_before_the_gate_has_other_bits(place: str) -> None:
    x, (gate, w) = normal(64, 1, 96, seed=6, dtype="bf16", device=DEVICE[place]), others(64, 96, place)
    norm = render_kernel("rms_norm_rows", TARGET[place], {"width": 96, "eps": EPS, "gamma": "plain"}).rms_norm(x, w)
    twice = (norm.double() * gate.double() * gate.double().sigmoid()).to(torch.bfloat16)
    assert differing(kernel(place).gated_rms_norm(x, gate, w), twice) > 0.05 * x.numel()


def test_accuracy(place: str) -> None:
    """fp32: the tree's height 7, halved by the root, and a dozen further roundings."""
    x, (gate, w) = normal(33, 1, 128, seed=7, device=DEVICE[place]), others(33, 128, place, "fp32")
    exact = reference(x, gate, w, eps=EPS)
    found = kernel(place, 128, "fp32").gated_rms_norm(x, gate, w)
    assert ((found.double() - exact).abs() <= 16 * 2.0**-24 * exact.abs() + 1e-30).all()


def test_gradients(place: str) -> None:
    x, incoming = (normal(37, 1, 96, seed=s, device=DEVICE[place]) for s in (8, 9))
    leaves = [t.clone().requires_grad_() for t in (x, *others(37, 96, place, "fp32"))]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    kernel(place, dtype="fp32").gated_rms_norm(*leaves).backward(incoming)
    reference(*exact, eps=EPS).backward(incoming.double())
    for got, wanted in zip(leaves, exact, strict=True):
        assert (got.grad - wanted.grad).abs().max() < 1e-5 * wanted.grad.abs().max()


def test_wrong_arguments_are_refused(place: str) -> None:
    x, (gate, w) = torch.zeros(4, 1, 96, dtype=torch.bfloat16), others(4, 96, "cpu")
    with pytest.raises(ValueError, match="x must be"):
        kernel(place).gated_rms_norm(x[..., 1:], gate[..., 1:], w)
    with pytest.raises(ValueError, match="gate must have the shape of x"):
        kernel(place).gated_rms_norm(x, gate[1:], w)
    with pytest.raises(ValueError, match=r"must be torch\.bfloat16"):
        kernel(place).gated_rms_norm(x, gate.float(), w)


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    x, w = torch.empty(64, 32, 128, dtype=torch.bfloat16), torch.empty(128, dtype=torch.bfloat16)
    with compiled_launches() as compiled:
        kernel("sm90", 128).gated_rms_norm(x, x, w)
    (variant,) = compiled
    # The fused operations of exp have exact products.
    assert offences(variant.ptx, allowed=("fused multiply-add",)) == ()
