"""A runtime release that the adapters are not written for."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import used_runtimes

RUNTIME_VERSION = Code(
    id="K226",
    title="runtime version outside the window",
    manual="""
The contract pins a release of a runtime for which its adapter is not written and tested.

    runtimes:
      engine: {use: vllm, version: "0.5.0", cases: [engine_prefill, engine_decode]}

Pin one of the releases in the help. An adapter binds to classes of the framework, and those move between releases.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A pinned version is in the runtime's window."""
    for use, runtime in used_runtimes(contract):
        if use.version not in runtime.versions:
            yield RUNTIME_VERSION.at(
                use.at("version"),
                f"{runtime.name} {use.version} has no adapter",
                help=f"releases with one: {', '.join(runtime.versions)}",
            )
