"""A kept contract with pieces of its text replaced: one fault in something otherwise sound."""

from tests.update_contracts import CONTRACTS


def edit(name: str, *edits: tuple[str, str]) -> bytes:
    """The contract `name` with each first text, which must occur once, replaced by the second."""
    text = (CONTRACTS / f"{name}.yaml").read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times in {name}"
        text = text.replace(old, new)
    return text.encode()
