"""A contract for a model as its Hugging Face config describes it, with every setting an implementation recommends."""

import json
import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from isoexec_compiler import contract_text as writer
from isoexec_compiler import huggingface
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import (
    Bucket,
    Claim,
    Contract,
    EqualBitsClaim,
    Model,
    Region,
    RuntimeUse,
    Selection,
    StateClaim,
    ToleranceClaim,
    TopologyClaim,
)
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import cases
from isoexec_compiler.fields import fault
from isoexec_compiler.layouts import uncuttable, unsummable
from isoexec_compiler.registry import (
    CASES,
    TARGETS,
    Family,
    Site,
    Unsupported,
    families,
    implementations,
    ops,
    runtimes,
)
from isoexec_compiler.span import Span

UNSUPPORTED_MODEL = Code(
    id="U410",
    title="model without a contract",
    manual="""
The Hugging Face config describes a model that no family here computes, or it is not a config at all.

    {"model_type": "deepseek_v3", "kv_lora_rank": 512}

The message names everything in it that stands in the way. A new architecture is a file under `models/`, with the ops
and implementations it needs.
""",
)

PARALLEL_SIZES = (1, 2, 4, 8)

# Which implementations to take for an op, with their cases, where it has several.
CHOICES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {"gated_delta_rule": (("gdn_rxc", CASES),)}


def contract_from(data: bytes, file: str, name: str = "") -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The contract's text for the bytes of a config.json, or None and why there is none.

    Without a name, the contract is named after the config's folder or, failing that, its model type.
    """
    start = Span(file=file, line=1, column=1, end_line=1, end_column=1)
    try:
        config = json.loads(data, parse_constant=_not_finite)
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        return None, (UNSUPPORTED_MODEL.at(start, f"not a Hugging Face config.json: {error}"),)
    if not isinstance(config, dict):
        return None, (UNSUPPORTED_MODEL.at(start, "not a Hugging Face config.json: the outermost value is no object"),)
    try:
        return contract_text(config, name or _name(file, config)), ()
    except Unsupported as reason:
        return None, (UNSUPPORTED_MODEL.at(start, str(reason)),)


def contract_text(config: Mapping[str, Any], name: str) -> str:
    """The text of a contract named `name` for a parsed config. Raises `Unsupported`."""
    return writer.contract_text(_contract(config, name))


def _contract(config: Mapping[str, Any], name: str) -> Contract:
    text = huggingface.text_config(config)
    family = _family(config, text)
    figures, layers = family.from_hf(text)
    if faults := [
        f"`{key}` {reason}" for key, field in family.config.items() if (reason := fault(figures[key], field))
    ]:
        raise Unsupported("; ".join(faults))
    sites = family.sites(figures, layers)
    used = tuple(
        RuntimeUse(side=runtime.side, use=runtime.name, version=runtime.versions[-1], cases=runtime.cases)
        for runtime in sorted(runtimes().values(), key=lambda runtime: runtime.side)
    )
    composition = tuple(selection for site in sites for selection in _selections(site))
    contract = Contract(
        name=name,
        model=Model(family=family.name, dtype=huggingface.dtype(text), config=figures, layers=layers),
        targets=TARGETS,
        runtimes=used,
        regions=tuple(Region(name=site.name, op=site.op, attributes=site.attributes) for site in sites),
        composition=composition,
        claims=_claims(sites, composition, used),
    )
    assert set(CASES) == set(cases(contract))
    return contract


def _family(config: Mapping[str, Any], text: Mapping[str, Any]) -> Family:
    types = [str(part["model_type"]) for part in (config, text) if part.get("model_type")]
    for family in families().values():
        if any(name in family.model_types for name in types):
            return family
    known = ", ".join(sorted(name for family in families().values() for name in family.model_types))
    found = f"the model type {types[0]!r}" if types else "a config without `model_type`"
    raise Unsupported(f"{found} has no family here; there are: {known}")


def _selections(site: Site) -> list[Selection]:
    return [_selection(site, use, run) for use, run in _choice(site)]


def _choice(site: Site) -> tuple[tuple[str, tuple[str, ...]], ...]:
    if site.op == "matmul":
        return (("matmul_tree" if site.split == "rows" else "matmul_sequential", CASES),)
    if site.op in CHOICES:
        return CHOICES[site.op]
    (use,) = (use.name for use in implementations().values() if use.op == site.op)
    return ((use, CASES),)


def _selection(site: Site, use: str, run: tuple[str, ...]) -> Selection:
    settings = implementations()[use].recommend(site.attributes)
    return Selection(
        region=site.name,
        cases=run,
        use=use,
        constants=settings.constants,
        launch={
            target: tuple(Bucket(max_rows=rows, parameters=parameters) for rows, parameters in buckets)
            for target, buckets in settings.launch.items()
        },
    )


def _claims(
    sites: tuple[Site, ...], composition: tuple[Selection, ...], used: tuple[RuntimeUse, ...]
) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    tp = _sizes(sites, composition, "tp")
    topologies = {"tp": tp, "sp": ("off", "on") if len(tp) > 1 else (), "ep": _ep(sites, composition)}
    for topology, sizes in topologies.items():
        across = tuple(use.side for use in used if topology in runtimes()[use.use].topologies)
        if len(sizes) > 1 and across:
            claims.append(TopologyClaim(topology=topology, sizes=sizes, across=across))
    for site in sites:
        chosen = [selection for selection in composition if selection.region == site.name]
        if len(chosen) > 1:
            claims.append(EqualBitsClaim(region=site.name, cases=CASES))
    for state in dict.fromkeys(state for site in sites for state in ops()[site.op].states):
        claims.append(StateClaim(state=state, invalidated_by=("weight_sync",), resume="exact"))
    claims.append(ToleranceClaim(cases=("engine_decode", "trainer_score"), max_abs_logprob=0.0))
    return tuple(claims)


def _ep(sites: tuple[Site, ...], composition: tuple[Selection, ...]) -> tuple[int, ...]:
    experts = tuple(site for site in sites if site.split == "experts")
    return _sizes(experts, composition, "ep") if experts else ()


def _sizes(sites: tuple[Site, ...], composition: tuple[Selection, ...], topology: str) -> tuple[int, ...]:
    """The sizes up to 8 at which every site can be cut with the bits of one rank."""
    graph = {site.name: site for site in sites}

    def holds(size: int) -> bool:
        if any(uncuttable(site, topology, size) for site in sites):
            return False
        return topology == "ep" or not any(
            unsummable(graph[one.region], implementations()[one.use], graph[one.region].attributes, one.constants, size)
            for one in composition
        )

    return tuple(size for size in PARALLEL_SIZES if size == 1 or holds(size))


def _not_finite(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _name(file: str, config: Mapping[str, Any]) -> str:
    path = PurePosixPath(file)
    stem = path.parent.name if path.stem == "config" else path.stem
    name = re.sub(r"[^a-z0-9]+", "_", stem.lower()).strip("_")
    return name if re.match("[a-z]", name) else str(config.get("model_type", "model"))
