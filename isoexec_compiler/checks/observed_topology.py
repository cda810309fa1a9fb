"""A topology that a runtime's adapter cannot see."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import used_runtimes
from isoexec_compiler.layouts import topologies

OBSERVED_TOPOLOGY = Code(
    id="K225",
    title="topology that a runtime cannot observe",
    manual="""
A claim is about a topology that the adapter of one of its sides has no means to see. At run time the guard could not
tell whether the deployed layout is inside the claim.

    claims:
      - {topology: sp, sizes: [off, on], across: [engine]}

Name only sides whose runtime observes it; without `across` a claim is about every side that does.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every side a topology claim names observes the topology; a claim that names none has at least one that does."""
    sides = {use.side: (use, runtime) for use, runtime in used_runtimes(contract)}
    for claim in topologies(contract):
        for i, side in enumerate(claim.across):
            use, runtime = sides.get(side, (None, None))
            if use and runtime and claim.topology not in runtime.topologies:
                yield OBSERVED_TOPOLOGY.at(
                    claim.at("across", i),
                    f"{runtime.name} cannot observe {claim.topology}",
                    labels=(Label(span=use.at("use"), text=f"the {side}'s runtime"),),
                )
        if not claim.across and not any(claim.topology in runtime.topologies for _, runtime in sides.values()):
            yield OBSERVED_TOPOLOGY.at(claim.at("topology"), f"no runtime of this contract observes {claim.topology}")
