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
    q, k = (hazards(rows, heads, shape[0], seed=3 + heads, dtype=dtype, device=DEVICE[place]) for heads in (3, 2))
    positions = integers(rows, below=LENGTH, seed=4, device=DEVICE[place])
    assert min(hazard_counts(q).values()) > 0
    with poisoned_outputs():
        whole = module.rotary(q, k, positions)
        for first, last in slices(place):
            found = module.rotary(q[first:last], k[first:last], positions[first:last])
            for out, wanted in zip(found, whole, strict=True):
                assert_same_bits(out, wanted[first:last], f"rows {first} to {last}")
    for out, x in zip(whole, (q, k), strict=True):
        assert_same_bits(out[..., shape[1] :], x[..., shape[1] :], "what is not turned")
    nothing = module.rotary(q[:0], k[:0], positions[:0])
    assert [out.shape for out in nothing] == [(0, 3, shape[0]), (0, 2, shape[0])]


@pytest.mark.parametrize("rows", [1, 5])
def test_heads_of_q_and_k_do_not_know_of_each_other(place: str, rows: int) -> None:
    """Ranks of tensor parallelism hold fewer heads of both; the counts are cut into programs in every way."""
    module = kernel(place, (64, 16), rows=4, num_warps=1) if TARGET[place] != "cpu" else kernel(place)
    x = hazards(rows, 12, 64, seed=14, dtype="bf16", device=DEVICE[place])
    positions = integers(rows, below=LENGTH, seed=15, device=DEVICE[place])
    with poisoned_outputs():
        whole, _ = module.rotary(x, x[:, :1], positions)
        for q_heads in (1, 2, 3, 8, 11):
            for k_heads in (1, 2, 5, 9):
                q, k = module.rotary(x[:, :q_heads], x[:, -k_heads:], positions)
                assert_same_bits(q, whole[:, :q_heads], f"q of {q_heads} heads beside k of {k_heads}")
                assert_same_bits(k, whole[:, -k_heads:], f"k of {k_heads} heads beside q of {q_heads}")


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_triton_has_the_bits_of_the_cpu_for_every_launch(triton_place: str, shape: tuple[int, int], dtype: str) -> None:
    q, k = (hazards(17, heads, shape[0], seed=5 + heads, dtype=dtype) for heads in (5, 2))
    positions = integers(17, below=LENGTH, seed=6)
    positions[3:6] = torch.tensor([LENGTH, -1, LENGTH - 1])
    expected = kernel("cpu", shape, dtype).rotary(q, k, positions)
    assert all(wanted[3:5, :, : shape[1]].isnan().all() for wanted in expected)
    on_device = [x.to(DEVICE[triton_place]) for x in (q, k, positions)]
    for launch in ({}, {"rows": 1, "num_warps": 1}, {"rows": 4, "num_warps": 2}, {"rows": 32, "num_warps": 8}):
        found = kernel(triton_place, shape, dtype, **launch).rotary(*on_device)
        for out, wanted in zip(found, expected, strict=True):
            assert_same_bits(one_nan(out), one_nan(wanted), f"{launch}")


@pytest.mark.parametrize("shape", SHAPES)
def test_accuracy(place: str, shape: tuple[int, int]) -> None:
    """Two rounded products and their rounded sum, of table entries within half a unit: 4 half units of |a| + |b|."""
    module = kernel(place, shape, "fp32")
    heads = [normal(17, count, shape[0], seed=7 + count, device=DEVICE[place]) for count in (2, 1)]
    positions = integers(17, below=LENGTH, seed=8, device=DEVICE[place])
    exact = reference(*heads, positions, rotary_dim=shape[1], theta=1e6)
    for x, found, truth in zip(heads, module.rotary(*heads, positions), exact, strict=True):
        first, second = x[..., : shape[1]].abs().double().chunk(2, -1)
        size = torch.cat((first + second, first + second), -1)
        error = (found.double() - truth).abs()
        assert (error[..., : shape[1]] <= 4 * 2.0**-24 * size).all()
        assert error[..., shape[1] :].max() == 0 if shape[1] < shape[0] else True


def test_one_rounding_and_not_three(place: str) -> None:
    """The control rounds the products to bf16 as well, as other implementations do: other bits."""
    module = kernel(place, (64, 64))
    x = normal(17, 3, 64, seed=9, dtype="bf16", device=DEVICE[place])
    positions = integers(17, below=LENGTH, seed=10, device=DEVICE[place])
    found = torch.cat(module.rotary(x[:, :2], x[:, 2:], positions), 1)
    cosine, sine = module.table().to(DEVICE[place])[positions][:, None].bfloat16().unbind(-1)
    first, second = x.chunk(2, -1)
    often = torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)
    assert differing(found, often) > 0.05 * found.numel()


def test_views_and_refusals(place: str) -> None:
    module = kernel(place, (64, 16), "fp32")
    qkv = normal(9, 7 * 64, seed=11, device=DEVICE[place])
    positions = integers(9, below=LENGTH, seed=12, device=DEVICE[place])
    q, k = (heads.unflatten(1, (-1, 64)) for heads in qkv[:, 64:].split((3 * 64, 2 * 64, 64), 1)[:2])
    expected = module.rotary(q.contiguous(), k.contiguous(), positions)
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    strided = [torch.stack((x, x), 2)[:, :, 0] for x in (q, k)]
    for views in ((q, k), (q.contiguous(), k), (q, k.contiguous()), (q, strided[1]), (strided[0], k), turned):
        found = module.rotary(*views, positions)
        assert all(out.is_contiguous() for out in found)
        for out, wanted in zip(found, expected, strict=True):
            assert_same_bits(out, wanted)

    for wrong in (positions.int(), positions[:4]):
        with pytest.raises(ValueError, match="positions must be"):
            module.rotary(q, k, wrong)
    with pytest.raises(ValueError, match="positions must be"):
        module.rotary(q, k[:4], positions)
    for other in (k[..., :32], k[:, :0], k.flatten(1)):
        with pytest.raises(ValueError, match="q and k must be"):
            module.rotary(q, other, positions)
    with pytest.raises(ValueError, match="q and k must be"):
        module.rotary(q, k.bfloat16(), positions)


def test_gradients(place: str) -> None:
    module = kernel(place, (64, 16), "fp32")
    positions = integers(9, below=LENGTH, seed=12, device=DEVICE[place])
    draws = [[normal(9, heads, 64, seed=s + heads, device=DEVICE[place]) for heads in (3, 2)] for s in (20, 30)]
    ours, alone = ([x.clone().requires_grad_() for x in draws[0]] for _ in range(2))
    exact = [x.double().requires_grad_() for x in draws[0]]
    torch.autograd.backward(reference(*exact, positions, rotary_dim=16, theta=1e6), [g.double() for g in draws[1]])
    with poisoned_outputs():
        torch.autograd.backward(module.rotary(*ours, positions), draws[1])
    for x, truth in zip(ours, exact, strict=True):
        assert (x.grad - truth.grad).abs().max() < 1e-6 * truth.grad.abs().max()

    module.rotary(*alone, positions)[1].backward(draws[1][1])
    assert_same_bits(alone[1].grad, ours[1].grad, "of k alone")
    assert not alone[0].grad.any()


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("shape", [(128, 128), (256, 64)])
def test_ptx(shape: tuple[int, int]) -> None:
    """One launch turns both and, in the backward, both gradients; its loads are wide for both."""
    q, k = (torch.empty(4, heads, shape[0], dtype=torch.bfloat16, requires_grad=True) for heads in (8, 2))
    with compiled_launches() as compiled:
        turned = kernel("sm90", shape).rotary(q, k, torch.arange(4))
        torch.autograd.backward(turned, [torch.empty_like(out) for out in turned])
    assert len(compiled) == 2
    for variant in compiled:
        assert offences(variant.ptx) == ()
        assert variant.ptx.count("ld.global.v4.b32") >= 4
