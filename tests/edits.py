"""A kept contract with pieces of its text replaced: one fault in something otherwise sound."""

import re

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


def _text(name: str) -> str:
    return (CONTRACTS / f"{name}.yaml").read_text(encoding="utf-8")
