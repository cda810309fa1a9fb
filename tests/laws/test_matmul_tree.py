"""The tree product: tensor-parallel ranks together have the bits of one, for their sums are nodes of one tree."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.registry import implementations
from tests.support.bits import assert_same_bits, bits, differing
from tests.support.inputs import normal, wide
from tests.support.products import CONSTANTS, SIZES, launches, module
from tests.support.targets import DEVICE

WORLDS = (1, 2, 4, 8)


def shares(tensor: torch.Tensor, world: int) -> list[torch.Tensor]:
    return [share.contiguous() for share in tensor.chunk(world, 1)]


def parts(kernel, x: torch.Tensor, weight: torch.Tensor, world: int) -> torch.Tensor:
    """What `world` ranks compute, [world, T, N] fp32."""
    ranks = zip(shares(x, world), shares(weight, world), strict=True)
    return torch.stack([kernel.partial(left, right) for left, right in ranks])


def operands(place: str, rows: int, seed: int = 0, longer: int = 1):
    n, k = SIZES[place][0], SIZES[place][1] * longer
    draw = {"dtype": "bf16", "device": DEVICE[place]}
    return wide(rows, k, seed=seed, **draw), wide(n, k, seed=seed + 1, **draw)


@pytest.mark.parametrize("leaf_dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("rows", [1, 70])
def test_ranks_together_have_the_bits_of_one(place: str, leaf_dtype: str, rows: int) -> None:
    n, k = SIZES[place]
    x, weight = operands(place, rows)
    tables = launches("matmul_tree", place)
    chosen = tables if place != "sm90" else tables[:: len(tables) // 7]
    constants = {"leaf_dtype": leaf_dtype}
    expected = module(place, "matmul_tree", n, k, constants=constants).matmul(x, weight)
    for table in chosen:
        kernel = module(place, "matmul_tree", n, k, table, constants=constants)
        assert_same_bits(kernel.matmul(x, weight), expected, str(table))
        for world in WORLDS:
            assert_same_bits(kernel.combine(parts(kernel, x, weight, world)), expected, f"{world} ranks, {table}")


def test_ranks_of_different_schedules_agree(place: str) -> None:
    """A trainer at one size and an engine at another choose other launches; their nodes still meet."""
    n, k = SIZES[place]
    x, weight = operands(place, 17)
    tables = launches("matmul_tree", place)
    kernels = [module(place, "matmul_tree", n, k, table) for table in (tables[0], tables[-1])]
    assert_same_bits(parts(kernels[0], x, weight, 4), parts(kernels[1], x, weight, 4))


def test_a_leaf_is_a_sequential_product(place: str) -> None:
    n, k = SIZES[place]
    x, weight = operands(place, 5)
    leaves = parts(module(place, "matmul_tree", n, k), x, weight, 8)
    sequential = module(place, "matmul_sequential", n, k // 8, out="fp32").matmul
    for leaf, (left, right) in enumerate(zip(shares(x, 8), shares(weight, 8), strict=True)):
        assert_same_bits(sequential(left, right), leaves[leaf], f"leaf {leaf}")


@pytest.mark.parametrize("block_k", [16, 64])
def test_leaves_of_one_step_are_added_outside_the_tensor_core(place: str, block_k: int) -> None:
    """With a known zero in the accumulator Triton folds the addition of two leaves into the second one's product."""
    n, k = SIZES[place][0], 8 * block_k
    x, weight = (wide(count, k, seed=count, dtype="bf16", device=DEVICE[place]) for count in (70, n))
    for table in launches("matmul_tree", place):
        if block_k == 64 or table[0][1].get("schedule", "tiles") in ("tiles", "warps"):
            kernel = module(place, "matmul_tree", n, k, table, constants={"block_k": block_k}, out="fp32")
            assert_same_bits(kernel.matmul(x, weight), kernel.combine(parts(kernel, x, weight, 8)), str(table))


@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_every_number_of_leaves_is_its_own_arithmetic(place: str, leaves: int) -> None:
    n, k = SIZES[place][0], SIZES[place][1] * 2
    x, weight = operands(place, 9, longer=2)
    kernel = module(place, "matmul_tree", n, k, constants={"leaves": leaves}, out="fp32")
    eight = module(place, "matmul_tree", n, k, out="fp32")
    expected = kernel.matmul(x, weight)
    for world in (size for size in WORLDS if size <= leaves):
        assert_same_bits(kernel.combine(parts(kernel, x, weight, world)), expected, f"{world} ranks")
    assert (differing(expected, eight.matmul(x, weight)) > 0) == (leaves != 8)


def test_leaf_dtype_is_its_own_arithmetic(place: str) -> None:
    n, k = SIZES[place]
    x, weight = operands(place, 9)
    rounded = module(place, "matmul_tree", n, k, constants={"leaf_dtype": "bf16"})
    leaves = parts(rounded, x, weight, 8)
    assert_same_bits(leaves.bfloat16().float(), leaves, "leaves hold bf16 values")
    assert differing(rounded.matmul(x, weight), module(place, "matmul_tree", n, k).matmul(x, weight)) > 0


def test_combine_is_the_balanced_tree(place: str) -> None:
    """A left fold gives 0x3F800000 here, and other bits in most draws; so does another order of ranks, from four on."""
    kernel = module(place, "matmul_tree", 8, 512, out="fp32")
    tiny = 2.0**-24
    vector = torch.tensor([1.0, tiny, tiny, tiny], device=DEVICE[place])[:, None, None].expand(4, 1, 8).contiguous()
    assert {hex(word) for word in bits(kernel.combine(vector)).flatten().tolist()} == {"0x3f800001"}
    for world in (4, 8):
        drawn = normal(world, 40, 8, seed=world, device=DEVICE[place])
        folded = drawn[0]
        for rank in range(1, world):
            folded = folded + drawn[rank]
        assert differing(kernel.combine(drawn), folded) > 0
        assert differing(kernel.combine(drawn), kernel.combine(drawn.roll(1, 0))) > 0
    two = normal(2, 40, 8, seed=2, device=DEVICE[place])
    assert differing(kernel.combine(two), kernel.combine(two.roll(1, 0))) == 0


def test_gradients_pass_through_the_ranks(place: str) -> None:
    n, k = SIZES[place]
    kernel = module(place, "matmul_tree", n, k)
    x, weight = (normal(r, k, seed=r, dtype="bf16", device=DEVICE[place]) for r in (6, n))
    grad = normal(6, n, seed=2, dtype="bf16", device=DEVICE[place])
    whole = [t.clone().requires_grad_() for t in (x, weight)]
    cut = [t.clone().requires_grad_() for t in (x, weight)]
    kernel.matmul(*whole).backward(grad)
    kernel.combine(parts(kernel, *cut, 4)).backward(grad)
    for one, many in zip(whole, cut, strict=True):
        assert float((one.grad.double() - many.grad.double()).norm() / one.grad.double().norm()) < 2**-8


def test_refusals(place: str) -> None:
    n, k = SIZES[place]
    kernel = module(place, "matmul_tree", n, k)
    x, weight = operands(place, 3)
    with pytest.raises(ValueError, match="partial"):
        kernel.matmul(x[:, : k // 2], weight[:, : k // 2].contiguous())
    with pytest.raises(ValueError, match="columns"):
        kernel.partial(x[:, : k // 16], weight[:, : k // 16].contiguous())
    with pytest.raises(ValueError, match="combine"):
        kernel.combine(torch.zeros(3, 1, n, device=DEVICE[place]))
    with pytest.raises(ValueError, match="combine"):
        kernel.combine(torch.zeros(2, 1, n, device=DEVICE[place], dtype=torch.bfloat16))


def test_the_declared_tree_can_be_cut(place: str) -> None:
    known = implementations()["matmul_tree"]
    tree = known.tree({"n": 8, "k": 4096, "split": "rows", "out": "model"}, CONSTANTS["matmul_tree"])
    assert [tree.obstacle(size) for size in WORLDS] == [None] * 4
    assert tree.obstacle(16)
    chain = implementations()["matmul_sequential"].tree(
        {"n": 8, "k": 4096, "split": "rows", "out": "model"}, CONSTANTS["matmul_sequential"]
    )
    assert chain.obstacle(1) is None
    assert chain.obstacle(2)
