"""A region that says something else than the model."""

from collections.abc import Iterator

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


def check(contract: Contract) -> Iterator[Diagnostic]:
    """A region's op and attributes are the site's."""
    graph = {site.name: site for site in sites(contract)}
    for region in contract.regions:
        site = graph.get(region.name)
        if site is None or region.op not in ops():
            continue
        if region.op != site.op:
            yield REGION_DIFFERS.at(
                region.at("op"), f"{region.name} is {region.op}, and the site of that name is {site.op}"
            )
        else:
            yield from _attributes(contract, region, site)


def _attributes(contract: Contract, region: Region, site: Site) -> Iterator[Diagnostic]:
    for name, meant in site.attributes.items():
        written = region.attributes.get(name, meant)
        if written != meant or type(written) is not type(meant):
            yield REGION_DIFFERS.at(
                region.at(name),
                f"`{name}` of {region.name} is {show(written)}, and the model makes it {show(meant)}",
                labels=_figure(contract, meant),
            )


def _figure(contract: Contract, value: Value) -> tuple[Label, ...]:
    """The figure that has the value, when one alone does."""
    named = [name for name, figure in contract.model.config.items() if figure == value and type(figure) is type(value)]
    if len(named) != 1:
        return (Label(span=contract.model.key("config"), text="by these figures"),)
    return (Label(span=contract.model.at("config", named[0]), text="by this figure"),)
