"""Reduction trees: the order in which an axis is summed, as a value that can be compared.

A sum over an axis cut into contiguous leaves is an expression over leaf indices. Tensor parallelism of size W gives
rank r the leaves [r*n/W, (r+1)*n/W); the ranks' results are combined pairwise by ascending rank. A topology claim holds
when the expression built from the rank-local sums is the same expression at every claimed size: decided here, by
construction and comparison, not cited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Expression = int | tuple["Expression", "Expression"]


def balanced(terms: tuple[Expression, ...]) -> Expression:
    """The pairwise tree over adjacent terms: ((0+1)+(2+3))+((4+5)+(6+7)); a left-over term joins at the next level."""
    while len(terms) > 1:
        pairs = tuple((terms[i], terms[i + 1]) for i in range(0, len(terms) - 1, 2))
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def chain(terms: tuple[Expression, ...]) -> Expression:
    """The left fold over terms: ((0+1)+2)+3."""
    total = terms[0]
    for term in terms[1:]:
        total = (total, term)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class ReductionTree:
    """A sum over `leaves` contiguous equal leaves, combined as a `balanced` tree or a sequential `chain`.

    `leaf` is the length of one leaf along the summed axis.
    """

    leaves: int
    leaf: int
    shape: Literal["balanced", "chain"]

    def local(self, first: int, count: int) -> Expression:
        """The expression one rank computes over its leaves [first, first + count)."""
        terms: tuple[Expression, ...] = tuple(range(first, first + count))
        return balanced(terms) if self.shape == "balanced" else chain(terms)

    def owner(self, leaf: int, size: int) -> int:
        """The rank that owns a leaf when `size` ranks share the axis."""
        return leaf * size // self.leaves

    def sharded(self, size: int) -> Expression:
        """The expression that `size` ranks compute together: rank-local sums, combined pairwise by ascending rank."""
        share = self.leaves // size
        return balanced(tuple(self.local(rank * share, share) for rank in range(size)))

    def obstacle(self, size: int) -> str | None:
        """Why this tree cannot be cut over `size` ranks with the bits of one, or None if it can."""
        if size > self.leaves or self.leaves % size:
            return f"{self.leaves} leaves cannot be shared equally by {size} ranks"
        difference = first_difference(self.sharded(1), self.sharded(size))
        if difference is None:
            return None
        one, many = difference
        return f"one rank computes {show(one)} where {size} ranks compute {show(many)}"


def first_difference(a: Expression, b: Expression) -> tuple[Expression, Expression] | None:
    """The first pair of nodes, in post-order, at which two expressions differ; None if they are the same expression."""
    stack: list[tuple[Expression, Expression, bool]] = [(a, b, False)]
    while stack:
        x, y, visited = stack.pop()
        if x is y or (isinstance(x, int) and x == y):
            continue
        if isinstance(x, int) or isinstance(y, int) or visited:
            return x, y
        if _span(x[0]) != _span(y[0]):
            return x, y
        stack += [(x[1], y[1], False), (x[0], y[0], False)]
    return None


def _span(node: Expression) -> tuple[int, int]:
    low = high = node
    while not isinstance(low, int):
        low = low[0]
    while not isinstance(high, int):
        high = high[1]
    return low, high


def show(node: Expression, depth: int = 3) -> str:
    """An expression for people; below `depth` levels a subtree is written as its range of leaves."""
    if isinstance(node, int):
        return str(node)
    if depth == 0:
        low, high = _span(node)
        return f"[{low}..{high}]"
    return f"({show(node[0], depth - 1)}+{show(node[1], depth - 1)})"
