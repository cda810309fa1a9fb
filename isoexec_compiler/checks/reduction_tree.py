# SPDX-License-Identifier: Apache-2.0
"""A sum whose order would change with the number of ranks: decided on the reduction tree."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import Selected, placements, sizes
from isoexec_compiler.registry import Site

REDUCTION_TREE = Code(
    id="K224",
    title="sum depends on the number of ranks",
    manual="""
A topology claim cuts an axis that a region sums. The sums of the ranks, added pairwise, must be the same expression at
every claimed size. That is decided on the implementation's tree: its leaves must be shared equally, and a rank's
leaves must be one subtree.

    composition:
      - {region: attn_out, cases: all, use: matmul_tree, constants: {leaves: 4, leaf_dtype: fp32}}
    claims:
      - {topology: tp, sizes: [1, 2, 4, 8]}

Raise the number of leaves to the largest size claimed, take an implementation that sums a balanced tree, or claim fewer
sizes. The message names the first node that differs.
""",
)

SUMMED = ("rows", "vocab")


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The tree of every summed axis that is cut is the same expression at every claimed size."""
    for one, site in placements(contract):
        for size, claim in sizes(contract, "tp").items() if site.split in SUMMED else ():
            if site.extent % size:
                continue
            if reason := _obstacle(one, site, size):
                yield REDUCTION_TREE.at(
                    claim.at("sizes", claim.sizes.index(size)),
                    f"tp {size} changes the sum of {site.name}: {reason}",
                    labels=(Label(span=one.selection.at("use"), text=f"{one.use.name} is selected here"),),
                )


def _obstacle(one: Selected, site: Site, size: int) -> str | None:
    if one.use.tree is None:
        whole = f"{one.use.name} sums all {site.extent} terms on one rank"
        return whole if site.split == "rows" else None
    tree = one.use.tree(one.region.attributes, one.selection.constants)
    reason = tree.obstacle(size)
    return reason and f"{reason} (K = {site.extent}, {tree.leaves} leaves of {tree.leaf})"
