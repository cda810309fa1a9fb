"""Laws of residual_add_rows."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.residual_add import reference
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, normal, slices
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, WIDTH = "residual_add_rows", 96


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_alone_is_the_row_in_any_batch(place: str, dtype: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype=dtype)
    x, residual = (hazards(batch(place), WIDTH, seed=s, dtype=dtype, device=DEVICE[place]) for s in (1, 30))
    assert min(hazard_counts(x).values()) > 0
    with poisoned_outputs():
        whole = module.residual_add(x, residual)
        for first, last in slices(place):
            found = module.residual_add(x[first:last], residual[first:last])
            assert_same_bits(found, whole[first:last], f"rows {first} to {last}")
    assert module.residual_add(x[:0], residual[:0]).shape == (0, WIDTH)


def test_one_rounding_to_nearest(place: str) -> None:
    """The exact sum of two bf16 fits float64, so the reference rounds once; truncation, the control, differs."""
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    x, residual = (normal(65, WIDTH, seed=s, dtype="bf16", device=DEVICE[place]) for s in (3, 4))
    exact = reference(x, residual)
    found = module.residual_add(x, residual)
    assert_same_bits(found, exact.to(torch.bfloat16))
    truncated = (exact.float().view(torch.int32) & -0x10000).view(torch.float32).to(torch.bfloat16)
    assert differing(found, truncated) > 0.1 * found.numel()


@pytest.mark.parametrize(("block", "num_warps"), [(512, 1), (4096, 8)])
def test_free_launch_parameters_move_nothing(triton_place: str, block: int, num_warps: int) -> None:
    launch = ((None, {"block": block, "num_warps": num_warps}),)
    x, residual = (hazards(33, WIDTH, seed=s, dtype="bf16") for s in (5, 50))
    wanted = render_kernel(NAME, "cpu", {"width": WIDTH}).residual_add(x, residual)
    tuned = render_kernel(NAME, TARGET[triton_place], {"width": WIDTH}, launch=launch)
    device = DEVICE[triton_place]
    assert_same_bits(one_nan(tuned.residual_add(x.to(device), residual.to(device))), one_nan(wanted))


def test_views_refusals_and_gradients(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    x = normal(WIDTH, 7, seed=6, device=DEVICE[place]).T.requires_grad_()
    residual = normal(7, WIDTH, seed=7, device=DEVICE[place]).requires_grad_()
    found = module.residual_add(x, residual)
    assert_same_bits(found, module.residual_add(x.contiguous(), residual))
    gradient = normal(7, WIDTH, seed=8, device=DEVICE[place])
    for got in torch.autograd.grad(found, (x, residual), gradient):
        assert_same_bits(got, gradient)
    with pytest.raises(ValueError, match="one shape"):
        module.residual_add(x, residual[:3])


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    x = torch.empty(4, 1024, dtype=torch.bfloat16)
    with compiled_launches() as compiled:
        render_kernel(NAME, "sm90", {"width": 1024}).residual_add(x, x)
    (variant,) = compiled
    assert offences(variant.ptx) == ()
    assert "ld.global.v4.b32" in variant.ptx
