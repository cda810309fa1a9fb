"""A site of the model that no region covers."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import sites
from isoexec_compiler.fields import show

MISSING_REGION = Code(
    id="K211",
    title="site without a region",
    manual="""
The forward pass of the model has a site that no region covers. What runs there would be the framework's own kernel.

    regions:
      q_norm: {op: rms_norm, width: 128, eps: 1.0e-6, gamma: plain}
      # no k_norm

The help is the line to add. `isoexec init` writes all of them from a Hugging Face config.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every site of the model graph has a region of its name."""
    declared = {region.name for region in contract.regions}
    for site in sites(contract):
        if site.name not in declared:
            attributes = "".join(f", {name}: {show(value)}" for name, value in site.attributes.items())
            yield MISSING_REGION.at(
                contract.key("regions"),
                f"no region covers the site {site.name} of {contract.model.family}",
                help=f"add `{site.name}: {{op: {site.op}{attributes}}}`",
            )
