"""A sum whose order would change with the number of ranks: decided on the reduction tree."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, Selection
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import placements
from isoexec_compiler.layouts import sizes, uncuttable, unsummable

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


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The tree of every summed axis that is cut is the same expression at every claimed size."""
    cut = list(placements(contract))
    for size, claim in sizes(contract, "tp").items():
        refused: dict[str, list[Selection]] = {}
        for one, site in cut:
            if uncuttable(site, "tp", size):
                continue
            if reason := unsummable(site, one.use, one.region.attributes, one.selection.constants, size):
                refused.setdefault(reason, []).append(one.selection)
        for reason, selections in refused.items():
            names = ", ".join(dict.fromkeys(selection.region for selection in selections))
            yield REDUCTION_TREE.at(
                claim.at("sizes", claim.sizes.index(size)),
                f"tp {size} changes the sum of {names}: {reason}",
                labels=(Label(span=selections[0].at("use"), text="the sum is selected here"),),
            )
