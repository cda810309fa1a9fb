"""A site that cannot be cut into as many equal parts as a topology claim says."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, Region
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import placements
from isoexec_compiler.layouts import sizes, uncuttable

SHARDS = Code(
    id="K223",
    title="site cannot be cut equally",
    manual="""
A topology claim has a size that does not divide what it cuts: the columns of a projection, the heads of attention, the
experts, the vocabulary with its padding.

    model:
      config: {num_attention_heads: 14, ...}
    claims:
      - {topology: tp, sizes: [1, 2, 4]}

Claim only sizes that divide it. Key and value heads may be fewer than the ranks if they divide their number: each is
then held by several ranks.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every claimed size divides every axis it cuts."""
    cut = list(placements(contract))
    for topology in ("tp", "ep"):
        for size, claim in sizes(contract, topology).items():
            refused: dict[str, list[Region]] = {}
            for one, site in cut:
                if reason := uncuttable(site, topology, size):
                    refused.setdefault(reason, []).append(one.region)
            for reason, regions in refused.items():
                names = ", ".join(dict.fromkeys(region.name for region in regions))
                yield SHARDS.at(
                    claim.at("sizes", claim.sizes.index(size)),
                    f"{topology} {size} cannot cut {names}: {reason}",
                    labels=(Label(span=regions[0].span, text="the first of these regions"),),
                )
