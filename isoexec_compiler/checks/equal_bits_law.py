"""A claim of equal bits that no law covers."""

from collections.abc import Iterator
from itertools import combinations

from isoexec_compiler.arithmetic import exact
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import by_region
from isoexec_compiler.registry import implementations

EQUAL_BITS_LAW = Code(
    id="K218",
    title="equal bits without a law",
    manual="""
A claim says that a region has the same bits in some cases, but the implementations selected there are not known to be
equal: no law compares them, or their constants differ.

    composition:
      - {region: gdn_core, cases: [engine_prefill], use: gdn_native_chunk}
      - {region: gdn_core, cases: [engine_decode], use: gdn_native_step}
    claims:
      - {equal_bits: gdn_core, cases: [engine_prefill, engine_decode]}

Select implementations that a law shows equal (each file lists them under `exact_with`) with the same constants, or
claim a tolerance instead.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """What is claimed equal is one arithmetic, or two that a law shows equal."""
    for claim in contract.claims:
        if not isinstance(claim, EqualBitsClaim):
            continue
        chosen = [
            selection
            for selection in by_region(contract).get(claim.region, ())
            if selection.use in implementations() and set(selection.cases) & set(claim.cases)
        ]
        for a, b in combinations(chosen, 2):
            if not exact(a, b):
                pair = f"{a.use} and {b.use}" if a.use != b.use else f"{a.use} with these constants and with those"
                yield EQUAL_BITS_LAW.at(
                    claim.at("equal_bits"),
                    f"no law shows {pair}, as selected for {claim.region}, equal in bits",
                    labels=(Label(span=a.at("use"), text="one"), Label(span=b.at("use"), text="the other")),
                )
