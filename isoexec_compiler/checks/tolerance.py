"""A tolerance that the composition contradicts."""

from collections.abc import Iterator

from isoexec_compiler.arithmetic import pinned
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim, Selection, ToleranceClaim
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import by_region

TOLERANCE = Code(
    id="K219",
    title="tolerance contradicts the composition",
    manual="""
A tolerance of 0 between two cases means zero differing bits, so that every region must be equal in both. A tolerance
above 0 admits a difference, so that some region must differ.

    - {tolerance: [engine_decode, trainer_score], max_abs_logprob: 1.0e-6}     # with one selection for all cases

Write 0 where bits are equal: a margin would hide the first fault. Write a bound above 0 only where the cases really run
different arithmetic.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A tolerance is 0 exactly when every region is equal in both cases."""
    for claim in contract.claims:
        if not isinstance(claim, ToleranceClaim):
            continue
        apart = dict(_differences(contract, claim.cases))
        first, second = claim.cases
        place = claim.at("max_abs_logprob")
        if claim.max_abs_logprob == 0 and apart:
            region, selection = next(iter(apart.items()))
            yield TOLERANCE.at(
                place,
                f"0 means equal bits, and {region} runs other arithmetic in {first} than in {second}",
                labels=(Label(span=selection.span, text=f"{region} in {second}"),),
            )
        if claim.max_abs_logprob > 0 and not apart:
            yield TOLERANCE.at(
                place, f"{first} and {second} are equal in bits by this composition", help="write `max_abs_logprob: 0`"
            )


def _differences(contract: Contract, cases: tuple[str, str]) -> Iterator[tuple[str, Selection]]:
    """The regions that differ between two cases without a claim of equal bits, with the second's selection."""
    for region, selections in by_region(contract).items():
        chosen = {case: selection for selection in selections for case in selection.cases}
        one, other = (chosen.get(case) for case in cases)
        if one and other and pinned(one) != pinned(other) and not _claimed(contract, region, cases):
            yield region, other


def _claimed(contract: Contract, region: str, cases: tuple[str, str]) -> bool:
    return any(
        isinstance(claim, EqualBitsClaim) and claim.region == region and set(cases) <= set(claim.cases)
        for claim in contract.claims
    )
