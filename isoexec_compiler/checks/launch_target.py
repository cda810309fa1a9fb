"""Launch parameters for each target, and for no other."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import lines
from isoexec_compiler.registry import implementations

LAUNCH_TARGET = Code(
    id="K205",
    title="launch does not match the targets",
    manual="""
A line of the composition lacks launch parameters for a target of the contract, or has some for a target that the
contract does not have or whose kernels take none.

    targets: [cpu]
    composition:
      - {region: attn_norm, cases: all, use: rms_norm_rows, launch: {sm90: {rows: 8, num_warps: 4}}}

Write launch parameters for exactly the targets under `targets:` whose kernels take them.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A selection has launch parameters for a target when its implementation takes some there."""
    for selection in lines(contract):
        use = implementations().get(selection.use)
        if use is None:
            continue
        for target in contract.targets:
            if use.launch.get(target) and target not in selection.launch:
                parameters = ", ".join(use.launch[target])
                yield LAUNCH_TARGET.at(
                    selection.key("launch"),
                    f"{use.name} has no launch parameters for {target}",
                    help=f"write `launch: {{{target}: ...}}` with {parameters}",
                )
        for target in selection.launch:
            place = selection.key("launch", target)
            if target not in contract.targets:
                yield LAUNCH_TARGET.at(place, f"{target} is not a target of this contract")
            elif not use.launch.get(target):
                yield LAUNCH_TARGET.at(place, f"{use.name} takes no launch parameters on {target}")
