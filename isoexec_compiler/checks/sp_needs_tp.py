"""Sequence parallelism without tensor parallelism."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.layouts import sizes, topologies

SP_NEEDS_TP = Code(
    id="K222",
    title="sp without tp",
    manual="""
Sequence parallelism cuts the tokens over the ranks of tensor parallelism. Without a claim of tp above 1 there are no
such ranks.

    claims:
      - {topology: sp, sizes: [off, on]}

Add a tp claim, or take the sp claim out.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A claim of sp goes with a claim of tp above 1."""
    for claim in topologies(contract):
        if claim.topology == "sp" and "on" in claim.sizes and not sizes(contract, "tp"):
            yield SP_NEEDS_TP.at(claim.at("topology"), "sp is claimed, and no tp above 1 is")
