"""The compiled product adds in the order of its declared tree, in every bucket of its launch table."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isoexec_compiler import reveal
from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.registry import implementations
from isoexec_compiler.subject import Subject

if TYPE_CHECKING:
    import torch

SCALARS_ON_CPU = 1 << 22


def _applies(kernel: Kernel, plan: Plan) -> bool:
    tree = implementations()[kernel.implementation].tree
    if kernel.op != "matmul" or tree is None or tree(kernel.attributes, kernel.constants).leaves < 2:
        return False
    return kernel.target != "cpu" or int(kernel.attributes["n"]) * int(kernel.attributes["k"]) <= SCALARS_ON_CPU


def _examine(subject: Subject) -> Finding:
    import torch

    finding, kernel, product = Finding(), subject.kernel, subject.module.matmul
    trees = {}
    for limit, _ in kernel.free_launch:
        found = reveal.of_kernel(kernel, _in_batches(product, limit))
        trees["any" if limit is None else str(limit)] = found.problem or reveal.text(found.found)
        finding.compared += found.rows
        finding.differing += 0 if found.agrees else found.rows
    order = torch.randperm(int(kernel.attributes["k"]), generator=torch.Generator().manual_seed(subject.seed))
    moved = reveal.of_kernel(kernel, lambda x, weight: product(x[:, order.to(x.device)], weight))
    finding.control = "terms in another order"
    finding.control_differing = 0 if moved.agrees else moved.rows
    finding.domain = {"tree by rows of a batch": trees, "declared": reveal.text(found.declared)}
    return finding


def _in_batches(product: Callable[..., Any], limit: int | None) -> Callable[..., torch.Tensor]:
    """The product in batches of the largest size of one launch bucket."""
    import torch

    def batched(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.cat([product(rows, weight) for rows in x.split(limit or len(x))])

    return batched


LAW = Law(
    name="declared_tree",
    doc="The order of additions found from the outputs alone, by masks of huge values, is the declared tree.",
    backs=("kernel", "tp"),
    applies=_applies,
    examine=_examine,
)
