"""Names in a contract that nothing bears."""

from collections.abc import Collection, Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, EqualBitsClaim, StateClaim, TopologyClaim
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.registry import families, implementations, ops, runtimes
from isoexec_compiler.span import Span

UNKNOWN_NAME = Code(
    id="K201",
    title="unknown name",
    manual="""
A family, layer kind, op, implementation, runtime, region, side or state is named that does not exist.

    composition:
      - {region: attn_norm, cases: all, use: rms_norm_row}

Families, ops, implementations and runtimes are the files under `models/`, `ops/`, `implementations/` and `runtimes/` of
`isoexec_compiler`. Regions and sides are those the same contract declares. The help names the nearest one there is.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A problem for every name that cannot be resolved."""
    family = families().get(contract.model.family)
    yield from _unknown("family", contract.model.family, families(), contract.model.at("family"))
    for kind in dict.fromkeys(contract.model.layers) if family else ():
        yield from _unknown("layer kind", kind, family.layer_kinds, contract.model.at("layers", "pattern"))  # type: ignore[union-attr]
    for use in contract.runtimes:
        yield from _unknown("runtime", use.use, runtimes(), use.at("use"))
    for region in contract.regions:
        yield from _unknown("op", region.op, ops(), region.at("op"))
    regions = {region.name for region in contract.regions}
    for selection in contract.composition:
        yield from _unknown("region", selection.region, regions, selection.span)
        yield from _unknown("implementation", selection.use, implementations(), selection.at("use"))
    for claim in contract.claims:
        match claim:
            case EqualBitsClaim():
                yield from _unknown("region", claim.region, regions, claim.at("equal_bits"))
            case TopologyClaim():
                sides = [use.side for use in contract.runtimes]
                for i, side in enumerate(claim.across):
                    yield from _unknown("side", side, sides, claim.at("across", i))
            case StateClaim():
                yield from _unknown("state", claim.state, states(contract), claim.at("state"))


def states(contract: Contract) -> tuple[str, ...]:
    """The states that the ops of the contract's regions carry from call to call."""
    known = (ops().get(region.op) for region in contract.regions)
    return tuple(dict.fromkeys(state for op in known if op for state in op.states))


def _unknown(kind: str, name: str, known: Collection[str], span: Span) -> Iterator[Diagnostic]:
    if name in known:
        return
    names = sorted(known)
    near = suggest(name, names)
    listed = ", ".join(names) if names else "none"
    yield UNKNOWN_NAME.at(
        span,
        f"no {kind} is called `{name}`",
        note=None if near else f"there are: {listed}",
        help=f"did you mean `{near}`?" if near else None,
    )
