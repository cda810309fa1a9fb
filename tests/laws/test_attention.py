"""Laws of attention_blocks: packed prefill, chunks against a paged cache and single rows are one function of a row."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.attention import reference
from tests.laws.attention_forms import FORMS, LAUNCHES, Heads, Paged, forms_agree, lengths_around, long_rows_agree
from tests.support.bits import assert_same_bits, differing, poisoned_outputs
from tests.support.inputs import DTYPES, normal
from tests.support.ptx import compiled_launches, offences
from tests.support.targets import DEVICE, HOPPER, INTERPRETING, PLACES

on_hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@pytest.mark.parametrize(("dim", "kv_block", "split", "group", "page"), FORMS)
def test_prefill_chunks_and_single_rows_have_the_same_bits(
    place: str, dim: int, kv_block: int, split: int, group: int, page: int
) -> None:
    heads = Heads(dim=dim, kv_block=kv_block, split=split, group=group)
    assert forms_agree(place, heads, lengths_around(heads), page, seed=page) > 0


def test_fp32_has_the_same_bits_in_every_form() -> None:
    if "cpu" in PLACES:
        assert forms_agree("cpu", Heads(dim=16, kv_block=16, split=32, dtype="fp32"), [3, 0, 47, 33], 48, seed=5) > 0


def test_another_block_or_split_moves_bits(place: str) -> None:
    base = Heads(dim=32, kv_block=16, split=32)
    q, k, v = base.draw(96, place, seed=1)
    bounds = torch.tensor([0, 96], dtype=torch.int32, device=q.device)
    out = base.kernels(place).attention(q, k, v, bounds)
    for other in (Heads(dim=32, kv_block=32, split=32), Heads(dim=32, kv_block=16, split=64)):
        assert differing(out, other.kernels(place).attention(q, k, v, bounds)) > 0


def test_empty_sequences_and_batches(place: str) -> None:
    heads = Heads(dim=32, kv_block=16, split=32)
    kernels = heads.kernels(place)
    q, k, v = heads.draw(6, place, seed=2)
    bounds = torch.tensor([0, 0, 5, 5, 6], dtype=torch.int32, device=q.device)
    with poisoned_outputs():
        out = kernels.attention(q, k, v, bounds)
        last = kernels.attention(q[5:], k[5:], v[5:], bounds[:2] + torch.tensor([0, 1], device=q.device).int())
        none = kernels.attention(q[:0], k[:0], v[:0], torch.zeros(3, dtype=torch.int32, device=q.device))
    assert not out.isnan().any()
    assert none.shape == (0, *q.shape[1:])
    assert_same_bits(out[5:], last, "a sequence of one row")


def test_heads_are_independent(place: str) -> None:
    heads = Heads(dim=32, kv_block=16, split=32)
    kernels = heads.kernels(place)
    q, k, v = heads.draw(70, place, seed=3)
    bounds = torch.tensor([0, 33, 70], dtype=torch.int32, device=q.device)
    out = kernels.attention(q, k, v, bounds)
    for key_head in (0, 1):
        for share in (4, 2, 1):  # fewer key heads than ranks: each rank holds a copy
            mine = slice(key_head * 4, key_head * 4 + share)
            one = slice(key_head, key_head + 1)
            assert_same_bits(kernels.attention(q[:, mine], k[:, one], v[:, one], bounds), out[:, mine], f"{mine}")


@pytest.mark.parametrize(("dim", "dtype"), [(64, "bf16"), (64, "fp32"), (128, "bf16"), (256, "bf16")])
def test_accuracy_and_gradients(place: str, dim: int, dtype: str) -> None:
    if (place != "sm90" and dim > 64) or (place != "cpu" and dtype == "fp32"):
        return  # the tensor cores' contract is bf16, and one head size is enough where kernels run slowly
    heads = Heads(dim=dim, kv_block=64, split=128, dtype=dtype)
    q, k, v = (x.clone() for x in heads.draw(330, place, seed=4))
    for x in (q, k, v):
        x[300:] = float("nan")  # padding behind the last sequence
        x.requires_grad_()
    bounds = torch.tensor([0, 0, 7, 300], dtype=torch.int32, device=q.device)
    out = heads.kernels(place).attention(q, k, v, bounds)
    exact = [x.detach()[:300].double().requires_grad_() for x in (q, k, v)]
    expected = reference(*exact, bounds, scale=dim**-0.5)
    bound = {"bf16": 4e-3, "fp32": 1e-6}[dtype]  # a rounding of p and one of the result; 2**-9 each
    assert _error(out[:300], expected) < bound
    if INTERPRETING:
        return  # the interpreter's dots are too slow for the backward
    gradient = normal(*out.shape, seed=6, dtype=dtype, device=DEVICE[place])
    gradient[300:] = float("nan")
    found = torch.autograd.grad(out, (q, k, v), gradient)
    for mine, truth in zip(found, torch.autograd.grad(expected, exact, gradient[:300].double()), strict=True):
        assert mine.abs().sum() > 0
        assert not mine[300:].any()
        assert _error(mine[:300], truth) < 2 * bound


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def test_refusals_name_what_is_wrong(place: str) -> None:
    heads = Heads(dim=32, kv_block=16, split=32)
    kernels = heads.kernels(place)
    q, k, v = heads.draw(4, place, seed=7)
    bounds = torch.tensor([0, 4], dtype=torch.int32, device=q.device)
    for query, ends in ((q.half(), bounds), (q[..., :16], bounds), (q[:, :7], bounds), (q, bounds.long())):
        with pytest.raises(ValueError, match="attention: "):
            kernels.attention(query, k, v, ends)
    cache = torch.zeros(2, 24, 2, 32, dtype=DTYPES["bf16"], device=q.device)
    with pytest.raises(ValueError, match="multiple of 16"):
        kernels.paged_attention(q, cache, cache, bounds[None], bounds, bounds[1:], 4)


@pytest.mark.skipif(INTERPRETING, reason="compiles the text that the interpreter replaces")
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_hopper_text_holds_the_products_and_roundings_that_were_meant(dim: int) -> None:
    heads = Heads(dim=dim, kv_block=64, split=1024)
    q, k, v = heads.draw(128, "cpu", seed=11)
    bounds = torch.tensor([0, 128], dtype=torch.int32)
    paged = Paged.store(k, v, [0, 128], 16, seed=11)
    kernels = heads.kernels("sm90")
    with compiled_launches() as compiled:
        kernels.attention(q, k, v, bounds)
        kernels.paged_attention(q, paged.k, paged.v, paged.table.repeat(1, 20), bounds, bounds[1:], 128)
        kernels.paged_attention(q[:1], paged.k, paged.v, paged.table.repeat(1, 20), bounds // 128, bounds[1:], 1)
    names = [kernel.name for kernel in compiled]
    assert names == ["_hopper_attention_kernel"] * 3 + ["_attention_combine_kernel"]
    for kernel in compiled:
        # exp2 is ex2.approx.ftz, and so is a part of the log2 of lse, which only the backward reads; fma is as written
        allowed = ("fused multiply-add", "approximate transcendental", "flush to zero")
        assert offences(kernel.ptx, allowed) == (), kernel.name
        assert kernel.shared <= 232448
        assert ("wgmma" in kernel.ptx) == (kernel.name == "_hopper_attention_kernel")


@on_hopper
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_long_sequences_have_the_same_bits_in_every_form(dim: int) -> None:
    assert long_rows_agree(Heads(dim=dim, kv_block=64, split=1024), 32768 + 33, seed=dim) > 0


@on_hopper
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_free_launch_parameters_move_no_bit(dim: int) -> None:
    heads = Heads(dim=dim, kv_block=64, split=128)
    q, k, v = heads.draw(700, "sm90", seed=8)
    bounds = torch.tensor([0, 1, 300, 700], dtype=torch.int32, device="cuda")
    expected = heads.kernels("sm90").attention(q, k, v, bounds)
    for launch in LAUNCHES:
        forms_agree("sm90", heads, [129, 3, 400], 16, 8, launch)
        assert_same_bits(heads.kernels("sm90", launch).attention(q, k, v, bounds), expected, str(launch))


@on_hopper
def test_stock_flash_attention_differs_between_prefill_and_one_row() -> None:
    q, k, v = (x.transpose(0, 1)[None] for x in Heads(dim=128, kv_block=64, split=1024).draw(4096, "sm90", seed=9))
    attend = torch.nn.functional.scaled_dot_product_attention
    whole = attend(q, k, v, is_causal=True, enable_gqa=True)
    rows = [attend(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], enable_gqa=True) for t in (2047, 3000, 4095)]
    assert any(differing(row, whole[:, :, t : t + 1]) for row, t in zip(rows, (2047, 3000, 4095), strict=True))


@on_hopper
def test_a_captured_graph_replays_for_other_lengths_and_repeats_give_one_pattern() -> None:
    heads = Heads(dim=128, kv_block=64, split=128)
    kernels = heads.kernels("sm90")
    q, k, v = heads.draw(1024, "sm90", seed=10)
    paged = Paged.store(k, v, [0, 300, 1024], 16, seed=10)
    start = torch.tensor([0, 1, 2], dtype=torch.int32, device="cuda")
    lengths = torch.tensor([1, 1], dtype=torch.int32, device="cuda")
    arguments = (q[:2], paged.k, paged.v, paged.table, start, lengths, 1)
    kernels.paged_attention(*arguments)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        out = kernels.paged_attention(*arguments)
    for keys in ([1, 1], [300, 724], [127, 129], [64, 65]):
        lengths.copy_(torch.tensor(keys, dtype=torch.int32))
        expected = kernels.paged_attention(*arguments)
        for _ in range(25):
            out.fill_(float("nan"))
            captured.replay()
            assert_same_bits(out, expected, f"replay at {keys}")
