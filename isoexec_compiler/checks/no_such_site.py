"""A region that covers nothing."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.facts import sites

NO_SUCH_SITE = Code(
    id="K212",
    title="region without a site",
    manual="""
A region has a name that no site of the model graph has.

    regions:
      q_nrom: {op: rms_norm, width: 128, eps: 1.0e-6, gamma: plain}

Regions are named after the sites of the family's graph. Correct the name, or delete the region; the help names the
nearest site.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every region covers a site."""
    names = [site.name for site in sites(contract)]
    for region in contract.regions if names else ():
        if region.name not in names:
            near = suggest(region.name, names)
            yield NO_SUCH_SITE.at(
                region.span,
                f"{contract.model.family} has no site {region.name}",
                note=None if near else f"there are: {', '.join(names)}",
                help=f"did you mean `{near}`?" if near else None,
            )
