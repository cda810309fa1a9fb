"""A runtime on the wrong side, or with cases it does not run."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, RuntimeUse
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import used_runtimes

RUNTIME_SIDE = Code(
    id="K227",
    title="runtime does not run the case",
    manual="""
A runtime is used as the side it is not, is given a case it does not run, or shares a case with the other side.

    runtimes:
      engine: {use: vllm, version: "0.26.0", cases: [engine_prefill, engine_decode, trainer_score]}

An engine prefills and decodes; a trainer runs the forward pass of training and scores sequences. Each case belongs to
one side.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A side's runtime is of that side and offers its cases."""
    taken: dict[str, RuntimeUse] = {}
    for use, runtime in used_runtimes(contract):
        if runtime.side != use.side:
            yield RUNTIME_SIDE.at(
                use.at("use"), f"{runtime.name} is a runtime of the {runtime.side}, not the {use.side}"
            )
            continue
        for i, case in enumerate(use.cases):
            if case not in runtime.cases:
                offered = ", ".join(runtime.cases)
                yield RUNTIME_SIDE.at(
                    use.at("cases", i), f"{runtime.name} does not run {case}", help=f"it runs {offered}"
                )
            elif case in taken:
                label = Label(span=taken[case].at("cases"), text="and here")
                yield RUNTIME_SIDE.at(use.at("cases", i), f"{case} belongs to two sides", labels=(label,))
            else:
                taken[case] = use
