"""A region that says something else than the model."""

from collections.abc import Iterator
from dataclasses import dataclass

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, Region
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import sites
from isoexec_compiler.fields import show
from isoexec_compiler.registry import Site, Value, ops

REGION_DIFFERS = Code(
    id="K213",
    title="region differs from the model",
    manual="""
A region's op or an attribute of it is not what the model's figures make it.

    model:
      config: {hidden_size: 2048, rms_norm_eps: 1.0e-6}
    regions:
      attn_norm: {op: rms_norm, width: 2048, eps: 1.0e-5, gamma: plain}

The model and the regions are written apart so that each checks the other. Correct the one that is wrong.
""",
)

MAX_LABELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """An attribute that is not what the model makes it; `figure` is the one figure with that value, or None."""

    region: Region
    attribute: str
    written: Value
    meant: Value
    figure: str | None


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A region's op and attributes are the site's. Regions that one figure contradicts are one problem."""
    graph = {site.name: site for site in sites(contract)}
    groups: dict[object, list[Difference]] = {}
    for region in contract.regions:
        site = graph.get(region.name)
        if site is None or region.op not in ops():
            continue
        if region.op != site.op:
            yield REGION_DIFFERS.at(
                region.at("op"), f"{region.name} is {region.op}, and the site of that name is {site.op}"
            )
            continue
        for found in _differences(contract, region, site):
            alone = (found.region.name, found.attribute)
            groups.setdefault((found.figure, found.written) if found.figure else alone, []).append(found)
    for differences in groups.values():
        yield _one(contract, differences[0]) if len(differences) == 1 else _several(contract, differences)


def _differences(contract: Contract, region: Region, site: Site) -> Iterator[Difference]:
    for name, meant in site.attributes.items():
        written = region.attributes.get(name, meant)
        if written != meant or type(written) is not type(meant):
            yield Difference(
                region=region, attribute=name, written=written, meant=meant, figure=_figure(contract, meant)
            )


def _figure(contract: Contract, value: Value) -> str | None:
    named = [name for name, figure in contract.model.config.items() if figure == value and type(figure) is type(value)]
    return named[0] if len(named) == 1 else None


def _one(contract: Contract, found: Difference) -> Diagnostic:
    model = contract.model
    figure = Label(span=model.at("config", found.figure), text="by this figure") if found.figure else None
    return REGION_DIFFERS.at(
        found.region.at(found.attribute),
        f"`{found.attribute}` of {found.region.name} is {show(found.written)}, "
        f"and the model makes it {show(found.meant)}",
        labels=(figure or Label(span=model.key("config"), text="by these figures"),),
    )


def _several(contract: Contract, differences: list[Difference]) -> Diagnostic:
    first = differences[0]
    names = ", ".join(dict.fromkeys(found.region.name for found in differences))
    return REGION_DIFFERS.at(
        contract.model.at("config", str(first.figure)),
        f"`{first.figure}` is {show(first.meant)}, and regions are written for {show(first.written)}: {names}",
        labels=tuple(
            Label(span=found.region.at(found.attribute), text=f"`{found.attribute}` of {found.region.name}")
            for found in differences[:MAX_LABELS]
        ),
    )
