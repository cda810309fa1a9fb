"""A tolerance that the composition contradicts."""

from collections.abc import Iterator, Mapping

from isoexec_compiler.arithmetic import pinned
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim, Region, Selection, ToleranceClaim
from isoexec_compiler.diagnostics import Diagnostic, Label

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
    for region in contract.regions:
        one, other = (_selected(contract, region).get(case) for case in cases)
        if one and other and pinned(one) != pinned(other) and not _claimed(contract, region, cases):
            yield region.name, other


def _selected(contract: Contract, region: Region) -> Mapping[str, Selection]:
    return {case: one for one in contract.composition if one.region == region.name for case in one.cases}


def _claimed(contract: Contract, region: Region, cases: tuple[str, str]) -> bool:
    return any(
        isinstance(claim, EqualBitsClaim) and claim.region == region.name and set(cases) <= set(claim.cases)
        for claim in contract.claims
    )
