"""Laws of l2_norm_rows: a row's bits depend on the row alone, on every target and for every launch."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.l2_norm import reference
from isoexec_compiler.plan import Launch
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, normal, slices, wide
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, EPS = "l2_norm_rows", 1e-6


def kernel(place: str, width: int = 96, dtype: str = "bf16", launch: Launch | None = None) -> ModuleType:
    return render_kernel(NAME, TARGET[place], {"width": width, "eps": EPS}, launch=launch, dtype=dtype)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("width", [64, 96, 128])
def test_a_row_alone_is_the_row_in_any_batch(place: str, width: int, dtype: str) -> None:
    module = kernel(place, width, dtype)
    x = wide(batch(place), 1, width, seed=1, dtype=dtype, device=DEVICE[place])
    with poisoned_outputs():
        whole = module.l2_norm(x)
        for first, last in slices(place):
            assert_same_bits(module.l2_norm(x[first:last]), whole[first:last], f"rows {first} to {last}")
    assert whole.isfinite().all()
    assert module.l2_norm(x[:0]).shape == (0, 1, width)


def test_heads_are_read_in_place(place: str) -> None:
    module = kernel(place, 64)
    heads = normal(17, 8 * 64, seed=2, dtype="bf16", device=DEVICE[place])[:, 64 : 7 * 64].unflatten(1, (6, 64))
    wanted = module.l2_norm(heads.contiguous())
    assert_same_bits(module.l2_norm(heads), wanted)
    assert_same_bits(module.l2_norm(heads.transpose(0, 1)).transpose(0, 1), wanted)


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_free_launch_parameters_move_nothing(triton_place: str, rows: int, num_warps: int) -> None:
    x = wide(33, 1, 96, seed=3, device=DEVICE[triton_place])
    tuned = kernel(triton_place, dtype="fp32", launch=((None, {"rows": rows, "num_warps": num_warps}),))
    assert_same_bits(tuned.l2_norm(x), kernel(triton_place, dtype="fp32").l2_norm(x))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_triton_has_the_bits_of_the_cpu(triton_place: str, dtype: str) -> None:
    for x in (wide(65, 1, 96, seed=4, dtype=dtype), hazards(65, 1, 96, seed=5, dtype=dtype)):
        found = kernel(triton_place, dtype=dtype).l2_norm(x.to(DEVICE[triton_place]))
        assert_same_bits(one_nan(found), one_nan(kernel("cpu", dtype=dtype).l2_norm(x)))
    assert min(hazard_counts(x).values()) > 0


def test_control_another_order_of_the_sum_is_seen(place: str) -> None:
    x = wide(257, 1, 128, seed=6, device=DEVICE[place])
    module = kernel(place, 128, "fp32")
    assert differing(module.l2_norm(x), module.l2_norm(x.roll(1, 2)).roll(-1, 2)) > 0


def test_accuracy(place: str) -> None:
    """fp32: the tree's height 7, halved by the root, and 4 further roundings."""
    x = normal(33, 1, 128, seed=7, device=DEVICE[place])
    exact = reference(x, eps=EPS)
    assert ((kernel(place, 128, "fp32").l2_norm(x).double() - exact).abs() <= 8 * 2.0**-24 * exact.abs()).all()


def test_gradients(place: str) -> None:
    x, incoming = (normal(37, 1, 96, seed=s, device=DEVICE[place]) for s in (8, 9))
    leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    kernel(place, dtype="fp32").l2_norm(leaf).backward(incoming)
    reference(exact, eps=EPS).backward(incoming.double())
    assert (leaf.grad - exact.grad).abs().max() < 1e-5 * exact.grad.abs().max()


def test_wrong_arguments_are_refused(place: str) -> None:
    with pytest.raises(ValueError, match="x must be"):
        kernel(place).l2_norm(torch.zeros(4, 1, 95, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match=r"x must be torch\.bfloat16"):
        kernel(place).l2_norm(torch.zeros(4, 1, 96))


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    with compiled_launches() as compiled:
        kernel("sm90", 128).l2_norm(torch.empty(64, 32, 128, dtype=torch.bfloat16))
    (variant,) = compiled
    assert offences(variant.ptx) == ()
