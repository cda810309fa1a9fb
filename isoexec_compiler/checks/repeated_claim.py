"""A claim about what another claim is about already."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Claim, Contract, EqualBitsClaim, StateClaim, ToleranceClaim, TopologyClaim
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.span import Span

REPEATED_CLAIM = Code(
    id="K220",
    title="claim repeated",
    manual="""
Two claims are about the same topology, region, state or pair of cases. If they differ, one of them is ignored or wrong.

    claims:
      - {topology: tp, sizes: [1, 2], across: [trainer]}
      - {topology: tp, sizes: [1, 2, 4], across: [engine]}

Write one claim. A topology claim is about every pair of sizes on every side it names: any trainer size with any engine
size.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """No two claims have one subject."""
    first: dict[object, Span] = {}
    for claim in contract.claims:
        subject, name, place = _subject(claim)
        if subject in first:
            label = Label(span=first[subject], text="first here")
            yield REPEATED_CLAIM.at(place, f"a second claim about {name}", labels=(label,))
        first.setdefault(subject, place)


def _subject(claim: Claim) -> tuple[object, str, Span]:
    match claim:
        case TopologyClaim():
            return ("topology", claim.topology), claim.topology, claim.at("topology")
        case EqualBitsClaim():
            return ("equal_bits", claim.region), claim.region, claim.at("equal_bits")
        case StateClaim():
            return ("state", claim.state), claim.state, claim.at("state")
        case ToleranceClaim():
            return ("tolerance", frozenset(claim.cases)), " and ".join(claim.cases), claim.at("tolerance")
