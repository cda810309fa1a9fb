"""What the rules ask about a contract: its settings with their fields, the model graph, selections with what they name.

All of it leaves out what does not resolve or is not sound; a rule of its own reports that.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from isoexec_compiler.contract import Contract, Placed, Region, RuntimeUse, Selection
from isoexec_compiler.fields import sound
from isoexec_compiler.registry import (
    Field,
    Implementation,
    Op,
    Runtime,
    Site,
    Values,
    families,
    implementations,
    ops,
    runtimes,
)


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


def lines(contract: Contract) -> tuple[Selection, ...]:
    """One selection for each line of the composition, whatever the number of regions it names."""
    return tuple({id(selection.node or selection): selection for selection in reversed(contract.composition)}.values())[
        ::-1
    ]


def by_region(contract: Contract) -> dict[str, list[Selection]]:
    """The selections of each region, in order."""
    found: dict[str, list[Selection]] = {}
    for selection in contract.composition:
        found.setdefault(selection.region, []).append(selection)
    return found


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
    """Selections whose names resolve and belong together, with sound attributes and constants."""
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


def used_runtimes(contract: Contract) -> Iterator[tuple[RuntimeUse, Runtime]]:
    """The runtimes that resolve, with where the contract uses them."""
    return ((use, runtimes()[use.use]) for use in contract.runtimes if use.use in runtimes())
