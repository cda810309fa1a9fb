"""The order in which a matrix product really adds, found from its outputs alone.

After FPRev (Xie et al., 2024, arXiv 2411.00442). Let term i of a sum be M, term j be -M, some others one and the rest
zero, with M so large that M + 1 rounds to M. Ones that are added below the node where i and j meet vanish, the others
survive: the result is the number of ones outside that node's subtree. All pairs (i, j) together give the tree, whatever
computes it, ours or a vendor's. A node of more than two children is one instruction that adds them all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.reduction import Expression, ReductionTree
from isoexec_compiler.registry import implementations
from isoexec_compiler.subject import DEVICE, imported

if TYPE_CHECKING:
    import torch

HUGE = 2.0**100
MOST_POSITIONS = 64  # so that counts of ones are exact in bfloat16 too
Node = int | tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Revealed:
    """What was found of one product, in leaves of the declared tree; `problem` says why it is no tree, or is empty.

    `rows` is the number of pairs that were tried; `stock` products are shown for comparison and owe nothing.
    """

    name: str
    stock: bool
    found: Node
    declared: Node
    rows: int
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether found and declared are one expression; the sides of an addition may be exchanged, for it commutes."""
        return not self.problem and _sorted(self.found) == _sorted(self.declared)


def reveal(
    plan: Plan, target: str, folder: Path, regions: tuple[str, ...] = (), *, stock: bool = False
) -> Iterator[Revealed]:
    """The trees of the matrix products of a generated package in `folder`; with `stock` also those of torch.mm."""
    import torch

    for kernel in plan.kernels:
        if kernel.op == "matmul" and kernel.target == target and (not regions or kernel.region in regions):
            (module,) = imported((kernel.dotted(folder.name),), folder.parent)
            yield of_kernel(kernel, module.matmul)
            if stock:
                yield of_kernel(kernel, lambda x, weight: torch.mm(x, weight.T), stock=True)


def of_kernel(kernel: Kernel, product: Callable[..., torch.Tensor], *, stock: bool = False) -> Revealed:
    """The tree of `product(x, weight)` for the shapes and the declared tree of `kernel`; `stock`: it is not ours."""
    implementation = implementations()[kernel.implementation]
    assert implementation.tree is not None
    declared = implementation.tree(kernel.attributes, kernel.constants)
    outputs = int(kernel.attributes["n"])
    if kernel.attributes["split"] == "columns":
        outputs //= max(kernel.tp_sizes)
    return of_product(product, declared, outputs, kernel.dtype, DEVICE[kernel.target], kernel.module, stock)


def of_product(
    product: Callable[..., torch.Tensor],
    declared: ReductionTree,
    outputs: int,
    dtype: str,
    device: str,
    name: str,
    stock: bool = False,
) -> Revealed:
    """The tree of x [T, K] times the transposed weight [outputs, K], probed at a few places of every declared leaf.

    A chain has one place a leaf, at most MOST_POSITIONS of them; a balanced tree the first, middle and last of a leaf.
    """
    length, leaf = declared.leaves * declared.leaf, declared.leaf
    places = (0,) if declared.shape == "chain" and declared.leaves > 1 else (0, leaf // 2, leaf - 1)
    step = -(-declared.leaves * len(places) // MOST_POSITIONS)
    leaves = range(0, declared.leaves, step)
    positions = [index * leaf + place for index in leaves for place in places]
    counts = _survivors(product, positions, length, outputs, dtype, device)
    sizes = {pair: len(positions) - count for pair, count in counts.items()}
    rows = len(sizes)
    expected = _only(declared.local(0, declared.leaves), set(leaves))
    try:
        found = _coarse(_tree(positions, sizes), leaf)
    except ValueError as error:
        return Revealed(name=name, stock=stock, found=0, declared=expected, rows=rows, problem=str(error))
    return Revealed(name=name, stock=stock, found=found, declared=expected, rows=rows)


def _survivors(
    product: Callable[..., torch.Tensor], positions: list[int], length: int, outputs: int, dtype: str, device: str
) -> dict[tuple[int, int], float]:
    """The ones that survive for every pair of positions."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    pairs = list(combinations(positions, 2))
    x = torch.zeros(len(pairs), length, dtype=kind, device=device)
    x[:, positions] = 1
    first, second = torch.tensor(pairs, device=device).unbind(1)
    row = torch.arange(len(pairs), device=device)
    x[row, first], x[row, second] = HUGE, -HUGE
    weight = torch.ones(outputs, length, dtype=kind, device=device)
    return dict(zip(pairs, product(x, weight)[:, 0].double().tolist(), strict=True))


def _tree(positions: list[int], sizes: dict[tuple[int, int], float]) -> Node:
    """The tree in which the least node above i and j holds sizes[i, j] positions. Raises ValueError when none does."""
    if len(positions) == 1:
        return positions[0]
    top = max(sizes[pair] for pair in combinations(positions, 2))
    if top != len(positions):
        raise ValueError(f"{len(positions)} terms meet in a node of {top:g}: this is not one tree of additions")
    children: list[list[int]] = []
    for position in positions:
        for child in children:
            if sizes[child[0], position] < top:
                child.append(position)
                break
        else:
            children.append([position])
    return tuple(_tree(child, sizes) for child in children)


def _coarse(node: Node, leaf: int) -> Node:
    """The tree in leaves: a subtree within one leaf is that leaf."""
    if isinstance(node, int):
        return node // leaf
    children = tuple(_coarse(child, leaf) for child in node)
    return children[0] if len(set(map(str, children))) == 1 and isinstance(children[0], int) else children


def _only(node: Expression, leaves: set[int]) -> Node:
    """The declared expression with other leaves left out."""
    kept = _kept(node, leaves)
    assert kept is not None
    return kept


def _kept(node: Expression, leaves: set[int]) -> Node | None:
    if isinstance(node, int):
        return node if node in leaves else None
    children = tuple(child for child in (_kept(part, leaves) for part in node) if child is not None)
    return children if len(children) > 1 else next(iter(children), None)


def _sorted(node: Node) -> Any:
    return node if isinstance(node, int) else tuple(sorted(map(_sorted, node), key=str))


def text(node: Node) -> str:
    """An expression for people, such as ((0+1)+(2+3))."""
    return str(node) if isinstance(node, int) else f"({'+'.join(map(text, node))})"


def sentence(found: Revealed) -> str:
    """What `isoexec reveal` says of one product."""
    name = f"{found.name} by torch.mm" if found.stock else found.name
    verdict = found.problem or ("as declared" if found.agrees else f"declared {text(found.declared)}")
    return f"{name}: {text(found.found)}, {verdict}\n"
