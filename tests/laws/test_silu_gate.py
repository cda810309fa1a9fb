"""Laws of silu_gate_rows."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.silu_gate import reference
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, normal, slices
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, WIDTH = "silu_gate_rows", 96
EDGES = (0.0, -0.0, 88.0, -88.0, 88.7, -88.7, 104.0, -104.0, 1e-40, -1e-40, float("inf"), float("nan"))


def inputs(rows: int, dtype: str, device: str = "cpu") -> torch.Tensor:
    gate_up = hazards(rows, 2 * WIDTH, seed=1, dtype=dtype, largest=100.0)
    gate_up[:, : len(EDGES)] = torch.tensor(EDGES).to(gate_up.dtype)
    return gate_up.to(device)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_alone_is_the_row_in_any_batch(place: str, dtype: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype=dtype)
    gate_up = inputs(batch(place), dtype, DEVICE[place])
    counts = hazard_counts(gate_up)
    assert min(counts[name] for name in ("negative zero", "positive zero", "subnormal")) > 0
    with poisoned_outputs():
        whole = module.silu_gate(gate_up)
        for first, last in slices(place):
            assert_same_bits(module.silu_gate(gate_up[first:last]), whole[first:last], f"rows {first} to {last}")
    assert not whole[:, len(EDGES) :].isnan().any()
    assert module.silu_gate(gate_up[:0]).shape == (0, WIDTH)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_rank_has_the_bits_of_its_columns(place: str, ranks: int) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    gate_up = inputs(33, "bf16", DEVICE[place])
    gates, ups = (half.chunk(ranks, 1) for half in gate_up.chunk(2, 1))
    parts = [module.silu_gate(torch.cat(pair, 1)) for pair in zip(gates, ups, strict=True)]
    assert_same_bits(torch.cat(parts, 1), module.silu_gate(gate_up))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_triton_has_the_bits_of_the_cpu_for_every_launch(triton_place: str, dtype: str) -> None:
    gate_up = inputs(17, dtype)
    wanted = render_kernel(NAME, "cpu", {"width": WIDTH}, dtype=dtype).silu_gate(gate_up)
    for block, num_warps in ((256, 1), (1024, 4), (2048, 8)):
        launch = ((None, {"block": block, "num_warps": num_warps}),)
        module = render_kernel(NAME, TARGET[triton_place], {"width": WIDTH}, launch=launch, dtype=dtype)
        found = module.silu_gate(gate_up.to(DEVICE[triton_place]))
        assert_same_bits(one_nan(found), one_nan(wanted), f"block {block}, {num_warps} warps")


def test_accuracy(place: str) -> None:
    """exp within 1.6 units, then a sum, a quotient and a product: at most 4 units of fp32; one rounding to bf16."""
    for dtype, bound in (("fp32", 4 * 2.0**-23), ("bf16", 1.01 * 2.0**-8)):
        module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype=dtype)
        gate_up = normal(65, 2 * WIDTH, seed=2, dtype=dtype, device=DEVICE[place], scale=8.0)
        exact = reference(gate_up)
        assert ((module.silu_gate(gate_up).double() - exact).abs() <= bound * exact.abs()).all()


def test_control_gate_times_sigmoid_is_another_form(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    gate, up = normal(65, 2 * WIDTH, seed=3, device=DEVICE[place]).chunk(2, 1)
    found = module.silu_gate(torch.cat((gate, up), 1))
    assert differing(found, gate * gate.sigmoid() * up) > 0.05 * found.numel()


def test_views_and_refusals(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH})
    wide = normal(9, 4 * WIDTH, seed=4, dtype="bf16", device=DEVICE[place])
    view = wide[:, WIDTH : 3 * WIDTH]
    assert_same_bits(module.silu_gate(view), module.silu_gate(view.contiguous()))
    for wrong in (wide, view.float(), view[0]):
        with pytest.raises(ValueError, match="gate_up must be"):
            module.silu_gate(wrong)


def test_gradient(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], {"width": WIDTH}, dtype="fp32")
    gate_up = normal(33, 2 * WIDTH, seed=5, device=DEVICE[place], scale=3.0).requires_grad_()
    gradient = normal(33, WIDTH, seed=6, device=DEVICE[place])
    exact = gate_up.detach().double().requires_grad_()
    reference(exact).backward(gradient.double())
    with poisoned_outputs():
        module.silu_gate(gate_up).backward(gradient)
    assert (gate_up.grad - exact.grad).abs().max() < 1e-6 * exact.grad.abs().max()


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    module = render_kernel(NAME, "sm90", {"width": 3072})
    gate_up = torch.empty(4, 6144, dtype=torch.bfloat16)
    with compiled_launches() as compiled:
        module.silu_gate(gate_up)
        module._launch(module._silu_gate_backward_kernel, gate_up, gate_up[:, :3072].contiguous(), gate_up.clone())
    assert len(compiled) == 2
    for variant in compiled:
        # The fused operations of exp have exact products.
        assert offences(variant.ptx, allowed=("fused multiply-add",)) == ()
        assert variant.ptx.count("fma.rn.f32") == 2 * 8
        assert "ld.global.v4.b32" in variant.ptx
