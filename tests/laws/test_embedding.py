"""Laws of embedding_gather: rows move bit for bit, on any number of ranks."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.embedding import reference
from tests.support.bits import assert_same_bits, bits, differing, poisoned_outputs
from tests.support.inputs import hazard_counts, hazards, integers, normal
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

NAME, VOCAB, WIDTH = "embedding_gather", 64, 96
ATTRIBUTES = {"vocab": VOCAB, "width": WIDTH}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_ranks_joined_have_the_bits_of_the_table(place: str, ranks: int, dtype: str) -> None:
    module = render_kernel(NAME, TARGET[place], ATTRIBUTES, dtype=dtype)
    table = hazards(VOCAB, WIDTH, seed=1, dtype=dtype, device=DEVICE[place])
    table[3, :] = float("nan")
    assert min(hazard_counts(table).values()) > 0
    ids = integers(65, below=VOCAB, seed=2, device=DEVICE[place])
    ids[7] = 3
    share = VOCAB // ranks
    with poisoned_outputs():
        parts = [module.embedding(ids, table[r * share :][:share], start=r * share) for r in range(ranks)]
        joined = module.combine(torch.stack(parts))
    assert torch.equal(bits(joined), bits(table[ids]))


def test_control_a_masked_sum_loses_the_sign_of_zero(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], ATTRIBUTES)
    table = hazards(VOCAB, WIDTH, seed=3, dtype="bf16", device=DEVICE[place])
    ids = integers(33, below=VOCAB, seed=4, device=DEVICE[place])
    half = VOCAB // 2
    parts = torch.stack([module.embedding(ids, table[s : s + half], start=s) for s in (0, half)])
    assert differing(parts.sum(0), module.combine(parts)) == hazard_counts(table[ids])["negative zero"] > 0


def test_ids_of_other_shards_views_and_empty_batches(place: str) -> None:
    module = render_kernel(NAME, TARGET[place], ATTRIBUTES)
    wide = normal(VOCAB, 2 * WIDTH, seed=5, dtype="bf16", device=DEVICE[place])
    ids = torch.tensor([-1, 0, VOCAB, VOCAB - 1, 2**40], device=DEVICE[place])
    with poisoned_outputs():
        found = module.embedding(ids, wide[:, :WIDTH])
    assert bits(found)[[0, 2, 4]].abs().sum() == 0
    assert_same_bits(found[[1, 3]], wide[[0, VOCAB - 1], :WIDTH])
    spread = torch.arange(8, device=DEVICE[place])[::2]
    assert_same_bits(module.embedding(spread, wide[:, :WIDTH]), wide[spread, :WIDTH])
    assert module.embedding(ids[:0], wide[:, :WIDTH]).shape == (0, WIDTH)
    assert module.combine(found.new_zeros(2, 0, WIDTH)).shape == (0, WIDTH)
    for wrong in (ids.int(), ids[None]):
        with pytest.raises(ValueError, match="int64"):
            module.embedding(wrong, wide[:, :WIDTH])


@pytest.mark.parametrize(("block", "num_warps"), [(64, 1), (2048, 8)])
def test_free_launch_parameters_move_nothing(triton_place: str, block: int, num_warps: int) -> None:
    launch = ((None, {"block": block, "num_warps": num_warps}),)
    module = render_kernel(NAME, TARGET[triton_place], ATTRIBUTES, launch=launch)
    table = hazards(VOCAB, WIDTH, seed=6, dtype="bf16", device=DEVICE[triton_place])
    ids = integers(17, below=VOCAB, seed=7, device=DEVICE[triton_place])
    assert_same_bits(module.embedding(ids, table), table[ids])


@pytest.mark.parametrize("ranks", [1, 2])
def test_gradient_is_the_fp32_sum_over_tokens_and_repeats(place: str, ranks: int) -> None:
    module = render_kernel(NAME, TARGET[place], ATTRIBUTES, dtype="fp32")
    table = normal(VOCAB, WIDTH, seed=8, device=DEVICE[place])
    ids = integers(257, below=VOCAB // 4, seed=9, device=DEVICE[place])
    gradient = normal(257, WIDTH, seed=10, device=DEVICE[place])
    exact = table.double().requires_grad_()
    reference(ids, exact).backward(gradient.double())
    share = VOCAB // ranks

    def once() -> torch.Tensor:
        shards = [table[r * share :][:share].clone().requires_grad_() for r in range(ranks)]
        for r, shard in enumerate(shards):
            module.embedding(ids, shard, start=r * share).backward(gradient)
        return torch.cat([shard.grad for shard in shards])

    found = once()
    assert (found - exact.grad).abs().max() < 1e-5 * exact.grad.abs().max()
    assert_same_bits(once(), found)


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_ptx() -> None:
    module = render_kernel(NAME, "sm90", {"vocab": VOCAB, "width": 1024})
    with compiled_launches() as compiled:
        module.embedding(torch.arange(4), torch.empty(VOCAB, 1024, dtype=torch.bfloat16))
        module.combine(torch.empty(4, 4, 1024, dtype=torch.bfloat16))
    assert [variant.name for variant in compiled] == ["_embedding_kernel", "_combine_kernel"]
    for variant in compiled:
        assert offences(variant.ptx) == ()
        assert "ld.global.v4.b32" in variant.ptx
