"""An implementation of another op than the region's."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.registry import implementations, ops

WRONG_OP = Code(
    id="K208",
    title="implementation of another op",
    manual="""
A region is given an implementation that computes something else.

    - {region: attn_norm, cases: all, use: matmul_tree}

The help lists the implementations of the region's op.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A selection's implementation computes its region's op."""
    regions = {region.name: region for region in contract.regions}
    for selection in contract.composition:
        region, use = regions.get(selection.region), implementations().get(selection.use)
        if region is None or use is None or region.op not in ops() or use.op == region.op:
            continue
        fitting = ", ".join(f"`{name}`" for name, other in implementations().items() if other.op == region.op)
        yield WRONG_OP.at(
            selection.at("use"),
            f"{use.name} computes {use.op}, and {region.name} is {region.op}",
            labels=(Label(span=region.at("op"), text=f"{region.name} is declared here"),),
            help=f"implementations of {region.op}: {fitting}" if fitting else None,
        )
