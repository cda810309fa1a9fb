"""Contract to plan: which kernel modules exist, and which cases share one."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.contract import (
    Bucket,
    Claim,
    Contract,
    EqualBitsClaim,
    Region,
    Selection,
    StateClaim,
    ToleranceClaim,
    TopologyClaim,
)
from isoexec_compiler.plan import Binding, Kernel, Plan
from isoexec_compiler.reduction import show
from isoexec_compiler.registry import Implementation, Value, Values, families, implementations, runtimes


def lower(contract: Contract) -> Plan:
    """The plan of a checked contract."""
    return Plan(
        contract=contract.name,
        targets=contract.targets,
        kernels=tuple(_kernels(contract)),
        bindings=tuple(
            Binding(
                side=use.side,
                runtime=use.use,
                version=use.version,
                cases=use.cases,
                adapters=_adapters(use.use, {region.op for region in contract.regions}),
            )
            for use in contract.runtimes
        ),
        semantic=_semantic(contract),
        claims=dict(sorted(item for claim in contract.claims for item in _claim(claim))),
        document=_document(contract),
    )


def _adapters(runtime: str, used: set[str]) -> tuple[str, ...]:
    declared = runtimes()[runtime]
    return declared.adapters + tuple(n for op, names in declared.adapters_by_op.items() if op in used for n in names)


def _kernels(contract: Contract) -> Iterator[Kernel]:
    regions = {region.name: region for region in contract.regions}
    for target in contract.targets:
        for name, region in regions.items():
            selections = [s for s in contract.composition if s.region == name]
            for selection, cases in _groups(selections, target):
                yield _kernel(contract, region, selection, cases, target, alone=len(selections) == 1)


def _groups(selections: list[Selection], target: str) -> Iterator[tuple[Selection, tuple[str, ...]]]:
    """Selections that agree in everything that this target's kernel text holds become one kernel."""
    groups: list[tuple[Selection, list[str]]] = []
    for selection in selections:
        for first, cases in groups:
            if _text(first, target) == _text(selection, target):
                cases.extend(selection.cases)
                break
        else:
            groups.append((selection, list(selection.cases)))
    return ((first, tuple(sorted(cases))) for first, cases in groups)


def _text(selection: Selection, target: str) -> tuple[str, Values, tuple[Bucket, ...]]:
    return selection.use, selection.constants, selection.launch.get(target, ())


def _kernel(
    contract: Contract, region: Region, selection: Selection, cases: tuple[str, ...], target: str, *, alone: bool
) -> Kernel:
    implementation = implementations()[selection.use]
    fields = implementation.launch.get(target, {})
    buckets = selection.launch.get(target, ()) or (Bucket(max_rows=None, parameters={}),)
    return Kernel(
        target=target,
        module=region.name if alone or set(cases) == _all_cases(contract) else f"{region.name}__{'_'.join(cases)}",
        region=region.name,
        cases=cases,
        op=region.op,
        attributes=region.attributes,
        implementation=implementation.name,
        version=implementation.version,
        constants=selection.constants,
        bit_launch={k: buckets[0].parameters[k] for k, field in fields.items() if not field.free},
        free_launch=tuple((b.max_rows, {k: b.parameters[k] for k, f in fields.items() if f.free}) for b in buckets),
        dtype=contract.model.dtype,
        tp_sizes=_tp_sizes(contract),
        rounding=implementation.rounding,
        tree=_tree(implementation, region, selection),
    )


def _all_cases(contract: Contract) -> set[str]:
    return {case for use in contract.runtimes for case in use.cases}


def _tp_sizes(contract: Contract) -> tuple[int, ...]:
    for claim in contract.claims:
        if isinstance(claim, TopologyClaim) and claim.topology == "tp":
            return tuple(int(size) for size in claim.sizes)
    return (1,)


def _tree(implementation: Implementation, region: Region, selection: Selection) -> str | None:
    if implementation.tree is None:
        return None
    tree = implementation.tree(region.attributes, selection.constants)
    return f"{tree.leaves} leaves of {tree.leaf}, {tree.shape}: {show(tree.sharded(1))}"


def _semantic(contract: Contract) -> dict[str, Value]:
    facts: dict[str, Value] = {
        "model.family": contract.model.family,
        "model.dtype": contract.model.dtype,
        "model.layers": " ".join(_runs(contract.model.layers)),
        "cases": " ".join(sorted(_all_cases(contract))),
    }
    facts |= {f"model.config.{key}": value for key, value in contract.model.config.items()}
    for region in contract.regions:
        facts[f"regions.{region.name}.op"] = region.op
        facts |= {f"regions.{region.name}.{key}": value for key, value in region.attributes.items()}
    return dict(sorted(facts.items()))


def _runs(kinds: tuple[str, ...]) -> Iterator[str]:
    """Layer kinds with repeats counted: ('a', 'a', 'b') gives 'a*2', 'b*1'."""
    start = 0
    for i in range(1, len(kinds) + 1):
        if i == len(kinds) or kinds[i] != kinds[start]:
            yield f"{kinds[start]}*{i - start}"
            start = i


def _claim(claim: Claim) -> Iterator[tuple[str, Value]]:
    match claim:
        case TopologyClaim():
            sizes = " ".join(str(size) for size in claim.sizes)
            yield f"topology.{claim.topology}", f"{sizes} across {' '.join(sorted(claim.across))}"
        case EqualBitsClaim():
            yield f"equal_bits.{claim.region}", " ".join(sorted(claim.cases))
        case StateClaim():
            yield f"state.{claim.state}.invalidated_by", " ".join(sorted(claim.invalidated_by))
            yield f"state.{claim.state}.resume", claim.resume
        case ToleranceClaim():
            yield f"tolerance.{'.'.join(sorted(claim.cases))}.max_abs_logprob", claim.max_abs_logprob


def _document(contract: Contract) -> dict[str, object]:
    """What the generated package reads at run time besides its lock, as plain data."""
    sites = families()[contract.model.family].sites(contract.model.config, contract.model.layers)
    layers = {site.name: list(site.layers) for site in sites}
    return {
        "contract": contract.name,
        "model": {
            "family": contract.model.family,
            "dtype": contract.model.dtype,
            "config": dict(contract.model.config),
            "layers": list(contract.model.layers),
        },
        "regions": {
            r.name: {"op": r.op, "attributes": dict(r.attributes), "layers": layers[r.name]} for r in contract.regions
        },
        "runtimes": {u.side: {"use": u.use, "version": u.version, "cases": list(u.cases)} for u in contract.runtimes},
        "claims": [_claim_data(claim) for claim in contract.claims],
        "waivers": [{"obligation": w.obligation, "reason": w.reason, "expires": w.expires} for w in contract.waivers],
    }


def _claim_data(claim: Claim) -> dict[str, object]:
    match claim:
        case TopologyClaim():
            return {"topology": claim.topology, "sizes": list(claim.sizes), "across": list(claim.across)}
        case EqualBitsClaim():
            return {"equal_bits": claim.region, "cases": list(claim.cases)}
        case StateClaim():
            return {"state": claim.state, "invalidated_by": list(claim.invalidated_by), "resume": claim.resume}
        case ToleranceClaim():
            return {"tolerance": list(claim.cases), "max_abs_logprob": claim.max_abs_logprob}
