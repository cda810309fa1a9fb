"""Reduction trees: claims are decided by comparing expressions, and the comparison is itself checked by arithmetic."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoexec_compiler.reduction import Expression, ReductionTree, balanced, chain, first_difference, show

POWERS = st.sampled_from([1, 2, 4, 8, 16, 32])


def evaluate(node: Expression, leaves: list[float]) -> float:
    """The expression in fp32: every sum rounded by a trip through four bytes."""
    if isinstance(node, int):
        return leaves[node]
    total = evaluate(node[0], leaves) + evaluate(node[1], leaves)
    return struct.unpack("f", struct.pack("f", total))[0]


def normals(seed: int, count: int) -> list[float]:
    draw = random.Random(seed)
    return [struct.unpack("f", struct.pack("f", draw.gauss(0, 1)))[0] for _ in range(count)]


@given(leaves=POWERS, size=POWERS)
def test_balanced_tree_is_the_same_expression_at_every_size_that_divides_it(leaves: int, size: int) -> None:
    tree = ReductionTree(leaves=leaves, leaf=64, shape="balanced")
    if size <= leaves:
        assert tree.obstacle(size) is None
        assert tree.sharded(size) == tree.sharded(1)
    else:
        assert "cannot be shared" in (tree.obstacle(size) or "")


@given(leaves=st.sampled_from([4, 8, 16, 32]), size=st.sampled_from([2, 4]))
def test_chain_is_refused_and_its_bits_do_differ(leaves: int, size: int) -> None:
    tree = ReductionTree(leaves=leaves, leaf=64, shape="chain")
    assert "where" in (tree.obstacle(size) or "")
    whole, cut = tree.sharded(1), tree.sharded(size)
    assert any(
        evaluate(whole, values) != evaluate(cut, values) for values in (normals(seed, leaves) for seed in range(64))
    )


@given(leaves=st.integers(1, 40), size=st.integers(1, 40))
def test_sharing_is_refused_unless_every_rank_gets_as_many_leaves(leaves: int, size: int) -> None:
    tree = ReductionTree(leaves=leaves, leaf=64, shape="balanced")
    if size > leaves or leaves % size:
        assert tree.obstacle(size) is not None


@given(seed=st.integers(0, 2**32), size=st.sampled_from([1, 2, 4, 8]))
def test_equal_expressions_have_equal_bits(seed: int, size: int) -> None:
    tree, values = ReductionTree(leaves=8, leaf=64, shape="balanced"), normals(seed, 8)
    assert struct.pack("f", evaluate(tree.sharded(size), values)) == struct.pack("f", evaluate(tree.sharded(1), values))


def test_every_leaf_has_one_owner_and_each_rank_a_contiguous_share() -> None:
    tree = ReductionTree(leaves=8, leaf=64, shape="balanced")
    assert [tree.owner(leaf, 4) for leaf in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_first_difference_names_the_node_where_two_orders_part() -> None:
    four = (0, 1, 2, 3)
    assert first_difference(balanced(four), balanced(four)) is None
    assert first_difference(balanced(four), chain(four)) == (balanced(four), chain(four))
    assert first_difference((balanced(four), 4), (chain(four), 4)) == (balanced(four), chain(four))


@pytest.mark.parametrize(("node", "text"), [(0, "0"), (((0, 1), 2), "((0+1)+2)"), (balanced(tuple(range(16))), None)])
def test_show_abbreviates_deep_trees(node: Expression, text: str | None) -> None:
    shown = show(node)
    assert shown == text if text else "[0..1]" in shown


def test_known_vector_tells_a_tree_from_a_fold() -> None:
    """numerics: fp32 [1, 2^-24, 2^-24, 2^-24] gives 0x3F800000 as a fold and 0x3F800001 as a balanced tree."""
    values = [1.0, 2.0**-24, 2.0**-24, 2.0**-24]
    bits = [struct.pack(">f", evaluate(order((0, 1, 2, 3)), values)).hex() for order in (chain, balanced)]
    assert bits == ["3f800000", "3f800001"]


def test_rotated_rank_order_differs_at_four_ranks_and_never_at_two() -> None:
    def differing(size: int) -> int:
        order = balanced(tuple(range(size)))
        rotated = balanced((*range(1, size), 0))
        draws = (normals(seed, size) for seed in range(2000))
        return sum(evaluate(order, values) != evaluate(rotated, values) for values in draws)

    assert differing(2) == 0
    assert differing(4) > 100
    assert differing(8) > 100
