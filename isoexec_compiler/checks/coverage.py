"""Every region selected exactly once in every case."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, Selection
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import by_region, cases

COVERAGE = Code(
    id="K209",
    title="region not selected exactly once",
    manual="""
A region has no implementation in some case, or two.

    composition:
      - {region: attn_norm, cases: [engine_prefill, engine_decode], use: rms_norm_rows}
      # nothing says what attn_norm is in trainer_fwd and trainer_score

Every region is selected once in each case that a runtime runs. A region without a kernel would run whatever the
framework has there.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The selections of a region partition the cases."""
    run = cases(contract)
    declared = {region.name for region in contract.regions}
    selections = by_region(contract)
    resolved = selections.keys() <= declared
    for region in contract.regions:
        chosen: dict[str, Selection] = {}
        for selection in selections.get(region.name, ()):
            if again := [case for case in selection.cases if case in chosen]:
                yield COVERAGE.at(
                    selection.span,
                    f"{region.name} is selected twice in {' and '.join(again)}",
                    labels=(Label(span=chosen[again[0]].span, text="first here"),),
                )
            chosen = dict.fromkeys(selection.cases, selection) | chosen
        missing = [case for case in run if case not in chosen]
        if missing and resolved:
            everywhere = " and ".join(missing) if len(missing) < len(run) else "any case"
            yield COVERAGE.at(region.span, f"no implementation is selected for {region.name} in {everywhere}")
