"""Laws of gdn_gates_rows: elementwise, fp32 to the end, the same bits on every target."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.gdn_gates import reference
from isoexec_compiler.plan import Launch
from tests.support.bits import assert_same_bits, differing, poisoned_outputs
from tests.support.inputs import batch, normal, slices
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, HEADS = "gdn_gates_rows", 24
EDGES = (0.0, -0.0, 20.0, -20.0, 88.0, -88.0, 200.0, -200.0, 1e-20, -1e-20)


def kernel(place: str, dtype: str = "bf16", launch: Launch | None = None) -> ModuleType:
    return render_kernel(NAME, TARGET[place], {"v_heads": HEADS}, dtype=dtype, launch=launch)


def inputs(place: str, rows: int, dtype: str = "bf16") -> tuple[torch.Tensor, ...]:
    device = DEVICE[place]
    a, b = (normal(rows, HEADS, seed=s, dtype=dtype, scale=6.0) for s in (1, 2))
    a[:, : len(EDGES)] = torch.tensor(EDGES).to(a.dtype)
    b[:, -len(EDGES) :] = torch.tensor(EDGES).to(b.dtype)
    a_log, dt_bias = normal(HEADS, seed=3), normal(HEADS, seed=4)
    dt_bias[: len(EDGES)] = 0.0
    return a.to(device), b.to(device), a_log.to(device), dt_bias.to(device)


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_row_alone_is_the_row_in_any_batch(place: str, dtype: str) -> None:
    module, (a, b, *heads) = kernel(place, dtype), inputs(place, batch(place), dtype)
    with poisoned_outputs():
        whole = module.gdn_gates(a, b, *heads)
        for first, last in slices(place):
            for part, all_rows in zip(module.gdn_gates(a[first:last], b[first:last], *heads), whole, strict=True):
                assert_same_bits(part, all_rows[first:last], f"rows {first} to {last}")
    g, beta = whole
    assert g.dtype == beta.dtype == torch.float32
    assert (g <= 0).all()
    assert ((beta >= 0) & (beta <= 1)).all()
    assert [t.shape for t in module.gdn_gates(a[:0], b[:0], *heads)] == [(0, HEADS)] * 2


def test_shares_of_the_heads_and_views_have_the_bits_of_the_whole(place: str) -> None:
    module, (a, b, a_log, dt_bias) = kernel(place), inputs(place, 33)
    packed = torch.cat((b, a), 1)
    whole = module.gdn_gates(a, b, a_log, dt_bias)
    for one, other in zip(module.gdn_gates(packed[:, HEADS:], packed[:, :HEADS], a_log, dt_bias), whole, strict=True):
        assert_same_bits(one, other)
    for size in (2, 4, 8):
        shares = zip(*(t.chunk(size, -1) for t in (a, b, a_log, dt_bias)), strict=True)
        parts = [module.gdn_gates(*(t.contiguous() for t in share)) for share in shares]
        for index in (0, 1):
            assert_same_bits(torch.cat([part[index] for part in parts], 1), whole[index], f"{size} ranks")


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("num_warps", [1, 8])
def test_free_launch_parameters_move_nothing(triton_place: str, rows: int, num_warps: int) -> None:
    tuned = kernel(triton_place, launch=((None, {"rows": rows, "num_warps": num_warps}),))
    arguments = inputs(triton_place, 33)
    for one, other in zip(tuned.gdn_gates(*arguments), kernel(triton_place).gdn_gates(*arguments), strict=True):
        assert_same_bits(one, other)


def test_triton_has_the_bits_of_the_cpu(triton_place: str) -> None:
    wanted = kernel("cpu").gdn_gates(*inputs("cpu", 65))
    for one, other in zip(kernel(triton_place).gdn_gates(*inputs(triton_place, 65)), wanted, strict=True):
        assert_same_bits(one.cpu(), other)


def test_control_vectors_rounded_to_bfloat16_move_every_decay(place: str) -> None:
    module, (a, b, a_log, dt_bias) = kernel(place), inputs(place, 65)
    g, _ = module.gdn_gates(a, b, a_log, dt_bias)
    rounded, _ = module.gdn_gates(a, b, a_log.bfloat16().float(), dt_bias)
    assert differing(g, rounded) > 0.9 * g.numel()


def test_accuracy(place: str) -> None:
    """fp32: exp within 1.6 units, log within 1, a division each; half a unit of a + dt_bias passes through exp. Below
    exp(-87) the result is zero."""
    arguments = inputs(place, 257, "fp32")
    passed = (arguments[0] + arguments[3]).abs().double()
    g, beta = kernel(place, "fp32").gdn_gates(*arguments)
    exact_g, exact_beta = reference(*arguments)
    assert ((g - exact_g).abs() <= (12 + passed) * 2.0**-24 * exact_g.abs() + 1e-36).all()
    assert ((beta - exact_beta).abs() <= 6 * 2.0**-24 * exact_beta + 1e-37).all()


def test_gradients(place: str) -> None:
    leaves = [t.clone().requires_grad_() for t in (
        normal(37, HEADS, seed=5, device=DEVICE[place]), normal(37, HEADS, seed=6, device=DEVICE[place]),
        normal(HEADS, seed=7, device=DEVICE[place]), normal(HEADS, seed=8, device=DEVICE[place]),
    )]  # fmt: skip
    incoming = [normal(37, HEADS, seed=s, device=DEVICE[place]) for s in (9, 10)]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    torch.autograd.backward(kernel(place, "fp32").gdn_gates(*leaves), incoming)
    torch.autograd.backward(reference(*exact), [t.double() for t in incoming])
    for got, wanted in zip(leaves, exact, strict=True):
        assert (got.grad - wanted.grad).abs().max() < 1e-5 * wanted.grad.abs().max()


def test_wrong_arguments_are_refused(place: str) -> None:
    module, (a, b, a_log, dt_bias) = kernel(place), inputs(place, 4)
    with pytest.raises(ValueError, match=r"a_log and dt_bias must be torch\.float32"):
        module.gdn_gates(a, b, a_log.bfloat16(), dt_bias)
    with pytest.raises(ValueError, match="a and b must be"):
        module.gdn_gates(a, b[1:], a_log, dt_bias)
    with pytest.raises(ValueError, match="a and b must be"):
        module.gdn_gates(a[:, :5], b[:, :5], a_log[:5], dt_bias[:5])


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    a, h = torch.empty(64, HEADS, dtype=torch.bfloat16), torch.empty(HEADS)
    with compiled_launches() as compiled:
        kernel("sm90").gdn_gates(a, a, h, h)
    (variant,) = compiled
    # The fused operations of exp have exact products.
    assert offences(variant.ptx, allowed=("fused multiply-add",)) == ()
