"""A kept contract with pieces of its text replaced: one fault in something otherwise sound."""

import re

from isoexec_compiler import pipeline
from isoexec_compiler.contract import Bucket, Selection
from isoexec_compiler.contract_text import selection_lines
from isoexec_compiler.registry import implementations
from tests.update_contracts import CONTRACTS


def edit(name: str, *edits: tuple[str, str]) -> bytes:
    """The contract `name` with each first text, which must occur once, replaced by the second."""
    text = _text(name)
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
        text = text.replace(old, new)
    return text.encode()


def line(name: str, region: str) -> str:
    """The text of the line of the composition of contract `name` that selects `region`."""
    composition = _text(name).split("\ncomposition:\n")[1].split("\n\n")[0] + "\n"
    lines = ["  - region: " + rest for rest in composition.split("  - region: ")[1:]]
    (found,) = (text for text in lines if region in re.findall(r"\w+", text.split("\n")[0])[1:])
    return found


def recommended(name: str, region: str, use: str, cases: tuple[str, ...]) -> str:
    """The text of a line that selects `use` for `region` of contract `name` in `cases`, with what it recommends."""
    contract, problems = pipeline.load(edit(name), f"{name}.yaml")
    assert contract, problems
    (attributes,) = (one.attributes for one in contract.regions if one.name == region)
    settings = implementations()[use].recommend(attributes)
    launch = {
        target: tuple(Bucket(max_rows=rows, parameters=parameters) for rows, parameters in buckets)
        for target, buckets in settings.launch.items()
    }
    selection = Selection(region=region, cases=cases, use=use, constants=settings.constants, launch=launch)
    return "\n".join(selection_lines(selection, [region], every=False)) + "\n"


def _text(name: str) -> str:
    return (CONTRACTS / f"{name}.yaml").read_text(encoding="utf-8")
