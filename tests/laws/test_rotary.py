"""Laws of rotary_table: the table, the turn, the part that is left alone."""

from __future__ import annotations

import math
from types import ModuleType

import pytest
import torch

from isoexec_compiler.ops.rotary import reference
from tests.support.bits import assert_same_bits, differing, one_nan, poisoned_outputs
from tests.support.inputs import batch, hazard_counts, hazards, integers, normal, slices
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, LENGTH = "rotary_table", 512
SHAPES = ((64, 64), (64, 16), (48, 24))
# Of the table below: a change of one bit of it, on any machine, is a change of policy.
DIGEST = "b3092a6eac7353fc4f958b788a9ad26586fa83fe155235d232842a322878db5c"


def attributes(head_dim: int = 64, rotary_dim: int = 16, length: int = LENGTH) -> dict[str, int | float]:
    return {"head_dim": head_dim, "rotary_dim": rotary_dim, "theta": 1e6, "max_positions": length}


def kernel(place: str, shape: tuple[int, int] = (64, 16), dtype: str = "bf16", **launch: int) -> ModuleType:
    table = ((None, launch),) if launch else None
    return render_kernel(NAME, TARGET[place], attributes(*shape), launch=table, dtype=dtype)


def test_table_is_the_rounded_exact_value_and_its_digest_is_known() -> None:
    module = render_kernel(NAME, "cpu", attributes(128, 128, 40960))
    table = module.table()
    assert table.shape == (40960, 64, 2)
    assert module.table_digest() == DIGEST
    for position, i in zip(integers(2000, below=40960, seed=1), integers(2000, below=64, seed=2), strict=True):
        angle = int(position) * 1e6 ** (-2 * int(i) / 128)
        # The angle's own error in float64, 2^-52 of at most 40960, is far below half a unit of fp32.
        for found, exact in zip(table[position, i].tolist(), (math.cos(angle), math.sin(angle)), strict=True):
            assert abs(found - exact) <= 2.0**-25 * 1.001 + 40960 * 2.0**-52


def test_shorter_tables_are_beginnings_of_longer_ones() -> None:
    module = kernel("cpu")
    assert_same_bits(module.table(33), module.table()[:33])
    assert module.table_digest(33) != module.table_digest(34)


def test_control_the_usual_fp32_angles_are_another_table() -> None:
    module = render_kernel(NAME, "cpu", attributes(128, 128, 4096))
    frequency = 1.0 / (1e6 ** (torch.arange(0, 128, 2).float() / 128))
    usual = torch.outer(torch.arange(4096).float(), frequency).cos()
    assert differing(module.table()[..., 0].contiguous(), usual) > 1000


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_alone_is_the_row_in_any_batch(place: str, shape: tuple[int, int], dtype: str) -> None:
    module, rows = kernel(place, shape, dtype), batch(place)
    x = hazards(rows, 3, shape[0], seed=3, dtype=dtype, device=DEVICE[place])
    positions = integers(rows, below=LENGTH, seed=4, device=DEVICE[place])
    assert min(hazard_counts(x).values()) > 0
    with poisoned_outputs():
        whole = module.rotary(x, positions)
        for first, last in slices(place):
            found = module.rotary(x[first:last], positions[first:last])
            assert_same_bits(found, whole[first:last], f"rows {first} to {last}")
        assert_same_bits(module.rotary(x[:, 1:2], positions), whole[:, 1:2], "one head of three")
    assert_same_bits(whole[..., shape[1] :], x[..., shape[1] :], "what is not turned")
    assert module.rotary(x[:0], positions[:0]).shape == (0, 3, shape[0])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_has_the_bits_of_the_cpu_for_every_launch(triton_place: str, shape: tuple[int, int], dtype: str) -> None:
    x = hazards(17, 2, shape[0], seed=5, dtype=dtype)
    positions = integers(17, below=LENGTH, seed=6)
    positions[3:6] = torch.tensor([LENGTH, -1, LENGTH - 1])
    wanted = kernel("cpu", shape, dtype).rotary(x, positions)
    assert wanted[3:5, :, : shape[1]].isnan().all()
    device = DEVICE[triton_place]
    for launch in ({}, {"rows": 1, "num_warps": 1}, {"rows": 32, "num_warps": 8}):
        found = kernel(triton_place, shape, dtype, **launch).rotary(x.to(device), positions.to(device))
        assert_same_bits(one_nan(found), one_nan(wanted), f"{launch}")


@pytest.mark.parametrize("shape", SHAPES)
def test_accuracy(place: str, shape: tuple[int, int]) -> None:
    """Two rounded products and their rounded sum, of table entries within half a unit: 4 half units of |a| + |b|."""
    module = kernel(place, shape, "fp32")
    x = normal(17, 2, shape[0], seed=7, device=DEVICE[place])
    positions = integers(17, below=LENGTH, seed=8, device=DEVICE[place])
    exact = reference(x, positions, rotary_dim=shape[1], theta=1e6)
    first, second = x[..., : shape[1]].abs().double().chunk(2, -1)
    size = torch.cat((first + second, first + second), -1)
    error = (module.rotary(x, positions).double() - exact).abs()
    assert (error[..., : shape[1]] <= 4 * 2.0**-24 * size).all()
    assert error[..., shape[1] :].max() == 0 if shape[1] < shape[0] else True


def test_one_rounding_and_not_three(place: str) -> None:
    """The control rounds the products to bf16 as well, as other implementations do: other bits."""
    module = kernel(place, (64, 64))
    x = normal(17, 2, 64, seed=9, dtype="bf16", device=DEVICE[place])
    positions = integers(17, below=LENGTH, seed=10, device=DEVICE[place])
    found = module.rotary(x, positions)
    cosine, sine = module.table().to(DEVICE[place])[positions][:, None].bfloat16().unbind(-1)
    first, second = x.chunk(2, -1)
    often = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    assert differing(found, often) > 0.05 * found.numel()


def test_views_refusals_and_gradient(place: str) -> None:
    module = kernel(place, (64, 16), "fp32")
    packed = normal(9, 6 * 64, seed=11, device=DEVICE[place])
    positions = integers(9, below=LENGTH, seed=12, device=DEVICE[place])
    heads = packed[:, 64 : 4 * 64].unflatten(1, (3, 64))
    wanted = module.rotary(heads.contiguous(), positions)
    assert_same_bits(module.rotary(heads, positions), wanted)
    assert_same_bits(module.rotary(heads.transpose(1, 2).contiguous().transpose(1, 2), positions), wanted)
    for wrong in (positions.int(), positions[:4]):
        with pytest.raises(ValueError, match="positions must be"):
            module.rotary(heads, wrong)

    x = heads.detach().clone().requires_grad_()
    gradient = normal(9, 3, 64, seed=13, device=DEVICE[place])
    exact = x.detach().double().requires_grad_()
    reference(exact, positions, rotary_dim=16, theta=1e6).backward(gradient.double())
    with poisoned_outputs():
        module.rotary(x, positions).backward(gradient)
    assert (x.grad - exact.grad).abs().max() < 1e-6 * exact.grad.abs().max()


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("shape", [(128, 128), (256, 64)])
def test_ptx(shape: tuple[int, int]) -> None:
    module = kernel("sm90", shape)
    with compiled_launches() as compiled:
        module.rotary(torch.empty(4, 8, shape[0], dtype=torch.bfloat16), torch.arange(4))
    (variant,) = compiled
    assert offences(variant.ptx) == ()
    assert "ld.global.v4.b32" in variant.ptx
