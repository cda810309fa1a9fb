"""A target on which an implementation has no kernel of the model's dtype."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import lines
from isoexec_compiler.registry import implementations

TARGET_DTYPE = Code(
    id="K214",
    title="no kernel for target and dtype",
    manual="""
An implementation has no kernel for a target of the contract, or none of the model's dtype there.

    model: {dtype: fp32, ...}
    targets: [sm90]

Take another implementation, or drop the target. Nothing falls back to a kernel of another architecture or precision.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every selected implementation has a kernel of the model's dtype on every target."""
    dtype = contract.model.dtype
    for selection in lines(contract):
        use = implementations().get(selection.use)
        for target in contract.targets if use else ():
            dtypes = use.dtypes.get(target, ())  # type: ignore[union-attr]
            if dtype in dtypes:
                continue
            reason = f"in {' and '.join(dtypes)}, not {dtype}" if dtypes else "not at all"
            yield TARGET_DTYPE.at(
                selection.at("use"),
                f"{selection.use} runs on {target} {reason}",
                labels=(Label(span=contract.model.at("dtype"), text="the model's dtype"),) if dtypes else (),
            )
