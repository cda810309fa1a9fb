"""A case that no runtime of the contract runs."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim, Placed, ToleranceClaim
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import cases, lines

CASE_NOT_RUN = Code(
    id="K210",
    title="case that nothing runs",
    manual="""
A selection or a claim names a case that no runtime of the contract runs.

    runtimes:
      engine: {use: vllm, version: "0.26.0", cases: [engine_prefill, engine_decode]}
    composition:
      - {region: attn_norm, cases: [engine_prefill, engine_decode, trainer_fwd], use: rms_norm_rows}

Add the case to the runtime that runs it, or take it out.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Cases of selections and claims are run."""
    run = cases(contract)

    def unknown(placed: Placed, key: str, named: tuple[str, ...]) -> Iterator[Diagnostic]:
        for i, case in enumerate(named):
            if case not in run:
                yield CASE_NOT_RUN.at(placed.at(key, i), f"no runtime of this contract runs {case}")

    for selection in lines(contract):
        yield from unknown(selection, "cases", selection.cases)
    for claim in contract.claims:
        if isinstance(claim, EqualBitsClaim):
            yield from unknown(claim, "cases", claim.cases)
        elif isinstance(claim, ToleranceClaim):
            yield from unknown(claim, "tolerance", claim.cases)
