"""An implementation selected in a case it is not for."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import lines
from isoexec_compiler.registry import implementations

CASE_NOT_OFFERED = Code(
    id="K215",
    title="implementation not for this case",
    manual="""
An implementation is selected in a case it does not compute, such as the row form of a recurrence where whole sequences
come in.

    - {region: gdn_core, cases: [trainer_fwd], use: gdn_native_step}

The note lists the cases it is for.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A selection's cases are among its implementation's."""
    for selection in lines(contract):
        use = implementations().get(selection.use)
        for i, case in enumerate(selection.cases) if use else ():
            if case not in use.cases:  # type: ignore[union-attr]
                yield CASE_NOT_OFFERED.at(
                    selection.at("cases", i),
                    f"{selection.use} does not run in {case}",
                    note=f"it runs in {', '.join(use.cases)}",  # type: ignore[union-attr]
                )
