"""Cases that run different arithmetic although nothing says how they compare."""

from collections.abc import Iterator
from itertools import combinations, product

from isoexec_compiler.arithmetic import pinned
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim, ToleranceClaim
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import by_region
from isoexec_compiler.registry import implementations

UNCLAIMED_DIFFERENCE = Code(
    id="K217",
    title="difference without a claim",
    manual="""
Two cases select different arithmetic for one region: another implementation, another constant, or another launch
parameter that moves bits. Equal bits then no longer follow from sharing a kernel.

    composition:
      - {region: attn, cases: [trainer_fwd, trainer_score], use: attention_blocks, constants: {split: 1024, ...}}
      - {region: attn, cases: [engine_prefill, engine_decode], use: attention_blocks, constants: {split: 512, ...}}

Claim `{equal_bits: attn, cases: [...]}`, which a law must cover; or a tolerance above 0 between the two cases,
which says that their log-probabilities do differ; or select the same in both.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every difference between cases of a region is claimed."""
    claims = contract.claims
    equal = [(claim.region, set(claim.cases)) for claim in claims if isinstance(claim, EqualBitsClaim)]
    tolerated = [set(claim.cases) for claim in claims if isinstance(claim, ToleranceClaim)]
    pairs = (pair for selections in by_region(contract).values() for pair in combinations(selections, 2))
    for a, b in pairs:
        known = a.use in implementations() and b.use in implementations()
        if not known or pinned(a) == pinned(b):
            continue
        owed = [
            pair
            for pair in product(a.cases, b.cases)
            if pair[0] != pair[1]
            and set(pair) not in tolerated
            and not any(region == a.region and set(pair) <= cases for region, cases in equal)
        ]
        if owed:
            one, other = owed[0]
            apart = ", ".join(dict.fromkeys(case for pair in owed for case in pair))
            yield UNCLAIMED_DIFFERENCE.at(
                b.span,
                f"{b.region} runs other arithmetic in {other} than in {one}, and no claim covers it",
                labels=(Label(span=a.span, text=f"{one} here"),),
                help=f"claim `{{equal_bits: {b.region}, cases: [{apart}]}}`, or select the same in both",
            )
