"""A state that outlives a call although nothing says for how long."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, StateClaim
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import cases
from isoexec_compiler.registry import ops

STATE_CLAIM = Code(
    id="K228",
    title="state without its claim",
    manual="""
A region keeps a state from call to call, such as a key-value cache or a recurrent state. The contract has no claim
about it, or one that lets it survive new weights.

    claims: []     # with `attn: {op: attention, ...}` run by an engine

Claim `{state: NAME, invalidated_by: [weight_sync], resume: exact}`. A state computed with old weights and read with new
ones is an error that no tolerance sees.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every state of an engine's regions has a claim, and new weights invalidate it."""
    claimed = {claim.state: claim for claim in contract.claims if isinstance(claim, StateClaim)}
    for claim in claimed.values():
        if "weight_sync" not in claim.invalidated_by:
            yield STATE_CLAIM.at(
                claim.at("invalidated_by"), f"{claim.state} survives new weights", help="add `weight_sync`"
            )
    known = {state for region in contract.regions if region.op in ops() for state in ops()[region.op].states}
    if not claimed.keys() <= known or not any(case.startswith("engine_") for case in cases(contract)):
        return
    reported: set[str] = set()
    for region in contract.regions:
        op = ops().get(region.op)
        for state in op.states if op else ():
            if state not in claimed and state not in reported:
                reported.add(state)
                yield STATE_CLAIM.at(
                    region.span,
                    f"{region.name} keeps {state} from call to call, and no claim is about it",
                    help=f"claim `{{state: {state}, invalidated_by: [weight_sync], resume: exact}}`",
                )
