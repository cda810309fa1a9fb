# SPDX-License-Identifier: Apache-2.0
"""What the rules ask about a contract: its settings with their fields, the model graph, selections with what they name.

All of it leaves out what does not resolve or is not sound; a rule of its own reports that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isoexec_compiler.contract import Contract, Placed, Region, RuntimeUse, Selection, TopologyClaim
from isoexec_compiler.registry import (
    Field,
    Implementation,
    Op,
    Runtime,
    Site,
    Value,
    Values,
    families,
    implementations,
    ops,
    runtimes,
)

TYPES = {"int": int, "float": float, "bool": bool, "enum": (str, int, float)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Values written in one mapping, the fields they must fill, and where the mapping stands.

    `kind` is what one value is called, `owner` what it belongs to.
    """

    kind: str
    owner: str
    values: Values
    fields: Mapping[str, Field]
    placed: Placed
    path: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A selection with the region and the implementation it names."""

    selection: Selection
    region: Region
    op: Op
    use: Implementation


def settings(contract: Contract) -> Iterator[Settings]:
    """Every group of settings whose fields are known; one mapping that several selections share comes once."""
    model = contract.model
    if family := families().get(model.family):
        yield Settings(
            kind="figure", owner=family.name, values=model.config, fields=family.config, placed=model, path=("config",)
        )
    for region in contract.regions:
        if op := ops().get(region.op):
            yield Settings(
                kind="attribute", owner=op.name, values=region.attributes, fields=op.attributes, placed=region, path=()
            )
    for selection in lines(contract):
        if use := implementations().get(selection.use):
            yield Settings(
                kind="constant",
                owner=use.name,
                values=selection.constants,
                fields=use.constants,
                placed=selection,
                path=("constants",),
            )
            for target, buckets in selection.launch.items():
                for i, bucket in enumerate(buckets):
                    yield Settings(
                        kind="launch parameter",
                        owner=f"{use.name} on {target}",
                        values=bucket.parameters,
                        fields=use.launch.get(target, {}),
                        placed=selection,
                        path=("launch", target, i),
                    )


def fault(value: Value, field: Field) -> str | None:
    """Why a value does not fit its field, as the end of a sentence, or None."""
    if not isinstance(value, TYPES[field.type]) or (isinstance(value, bool) and field.type != "bool"):
        names = {"int": "a whole number", "float": "a number", "bool": "`true` or `false`", "enum": "one of its words"}
        return f"is {names[field.type]}, not {show(value)}" + (f": {_listed(field)}" if field.choices else "")
    if field.choices and value not in field.choices:
        return f"is one of {_listed(field)}, not {show(value)}"
    if isinstance(value, str):
        return None
    if field.minimum is not None and value < field.minimum:
        return f"is at least {show(_like(value, field.minimum))}, not {show(value)}"
    if field.maximum is not None and value > field.maximum:
        return f"is at most {show(_like(value, field.maximum))}, not {show(value)}"
    if field.multiple_of is not None and value % field.multiple_of:
        return f"is a multiple of {field.multiple_of}, not {show(value)}"
    return None


def show(value: Value) -> str:
    """A value as a contract writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sound(values: Values, fields: Mapping[str, Field]) -> bool:
    """Whether the values fill the fields: none missing, none too many, each fitting."""
    return values.keys() == fields.keys() and not any(fault(values[name], fields[name]) for name in fields)


def lines(contract: Contract) -> tuple[Selection, ...]:
    """One selection for each line of the composition, whatever the number of regions it names."""
    return tuple({id(selection.node or selection): selection for selection in reversed(contract.composition)}.values())[::-1]


def cases(contract: Contract) -> tuple[str, ...]:
    """The cases that some runtime of the contract runs."""
    return tuple(dict.fromkeys(case for use in contract.runtimes for case in use.cases))


def sites(contract: Contract) -> tuple[Site, ...]:
    """The model graph, or nothing when the family or its figures are not sound."""
    family = families().get(contract.model.family)
    known = family is not None and set(contract.model.layers) <= set(family.layer_kinds)
    if family is None or not known or not sound(contract.model.config, family.config):
        return ()
    return family.sites(contract.model.config, contract.model.layers)


def selected(contract: Contract) -> Iterator[Selected]:
    """Selections whose region, op and implementation resolve and belong together, with sound attributes and constants."""
    regions = {region.name: region for region in contract.regions}
    for selection in contract.composition:
        region, use = regions.get(selection.region), implementations().get(selection.use)
        op = ops().get(region.op) if region else None
        if region is None or use is None or op is None or use.op != op.name:
            continue
        if sound(region.attributes, op.attributes) and sound(selection.constants, use.constants):
            yield Selected(selection=selection, region=region, op=op, use=use)


def placements(contract: Contract) -> Iterator[tuple[Selected, Site]]:
    """Selections with the site of the model graph that their region covers."""
    graph = {site.name: site for site in sites(contract)}
    return ((one, graph[one.region.name]) for one in selected(contract) if one.region.name in graph)


def topologies(contract: Contract) -> Iterator[TopologyClaim]:
    """The topology claims."""
    return (claim for claim in contract.claims if isinstance(claim, TopologyClaim))


def sizes(contract: Contract, topology: str) -> dict[int, TopologyClaim]:
    """The sizes above 1 that are claimed for `tp` or `ep`, with the claim."""
    return {
        size: claim
        for claim in topologies(contract)
        if claim.topology == topology
        for size in claim.sizes
        if isinstance(size, int) and size > 1
    }


def used_runtimes(contract: Contract) -> Iterator[tuple[RuntimeUse, Runtime]]:
    """The runtimes that resolve, with where the contract uses them."""
    return ((use, runtimes()[use.use]) for use in contract.runtimes if use.use in runtimes())


def _listed(field: Field) -> str:
    return ", ".join(map(show, field.choices))


def _like(value: Value, bound: float) -> Value:
    return int(bound) if isinstance(value, int) and float(bound).is_integer() else bound


def pinned(selection: Selection) -> tuple[object, ...]:
    """Everything about a selection that moves bits: two selections that agree in it run one arithmetic."""
    use = implementations().get(selection.use)
    launch = {
        target: {
            name: value
            for name, value in (buckets[0].parameters if buckets else {}).items()
            if use and name in use.launch.get(target, {}) and not use.launch[target][name].free
        }
        for target, buckets in selection.launch.items()
    }
    return selection.use, dict(selection.constants), {target: values for target, values in launch.items() if values}


def exact(a: Selection, b: Selection) -> bool:
    """Whether the same bits come of both: they run one arithmetic, or a law shows their implementations equal."""
    if pinned(a) == pinned(b):
        return True
    first, second = implementations().get(a.use), implementations().get(b.use)
    if first is None or second is None:
        return False
    shared = a.constants.keys() & b.constants.keys()
    agree = all(a.constants[name] == b.constants[name] for name in shared)
    return agree and (second.name in first.exact_with or first.name in second.exact_with)


def uncuttable(site: Site, topology: str, size: int) -> str | None:
    """Why `size` ranks cannot hold equal parts of a site, or None. Topologies are `tp` and `ep`."""
    for what, extent in _cut(site, topology):
        if extent % size:
            return f"{extent} {what} are not a multiple of {size}"
    groups = site.attributes.get("kv_heads", 1)
    if topology == "tp" and isinstance(groups, int) and groups % size and size % groups:
        return f"{groups} key and value heads neither divide nor are divided by {size}"
    return None


def _cut(site: Site, topology: str) -> tuple[tuple[str, int], ...]:
    """The axes of a site that a topology cuts, with their lengths. Tensor parallelism cuts the width of every expert."""
    if site.split == "experts":
        width = site.attributes.get("width")
        return (("experts", site.extent),) if topology == "ep" else (("columns of an expert", int(width or 0)),)
    units = {"columns": "units", "rows": "terms", "heads": "heads", "vocab": "rows of the padded vocabulary"}
    return ((units[site.split], site.extent),) if topology == "tp" and site.split in units else ()


def unsummable(site: Site, use: Implementation, attributes: Values, constants: Values, size: int) -> str | None:
    """Why the sums of `size` ranks of tensor parallelism do not give the bits of one, or None."""
    if site.split not in ("rows", "vocab", "experts"):
        return None
    if use.tree is None:
        return f"{use.name} sums all {site.extent} terms on one rank" if site.split == "rows" else None
    tree = use.tree(attributes, constants)
    reason = tree.obstacle(size)
    return reason and f"{reason} (K = {tree.leaves * tree.leaf}, {tree.leaves} leaves of {tree.leaf})"
