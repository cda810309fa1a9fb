"""The tree a source text is read into. Every node has a position; positions never take part in equality."""

from __future__ import annotations

from dataclasses import dataclass, field

from isoexec_compiler.span import Span

Value = str | int | float | bool | None
Data = Value | list["Data"] | dict[str, "Data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A leaf. `text` is the content as written, without quotes, so `1.10` is told from `1.1` and `1` from `true`."""

    value: Value
    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One `key: value`."""

    key: str
    key_span: Span = field(compare=False)
    value: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """Entries in the order written, no key twice."""

    entries: tuple[Entry, ...]
    span: Span = field(compare=False)

    def entry(self, key: str) -> Entry | None:
        """The entry of `key`, or None."""
        return next((entry for entry in self.entries if entry.key == key), None)

    def get(self, key: str) -> Node | None:
        """The value of `key`, or None. A value that is written `null` is a `Scalar`."""
        entry = self.entry(key)
        return entry.value if entry else None

    def keys(self) -> tuple[str, ...]:
        """The keys in the order written."""
        return tuple(entry.key for entry in self.entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequence:
    """Items in the order written."""

    items: tuple[Node, ...]
    span: Span = field(compare=False)


Node = Scalar | Mapping | Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A source text and its tree. Lines of `text` end in a line feed, whatever the file had."""

    name: str
    text: str = field(compare=False)
    root: Mapping


def to_data(node: Node) -> Data:
    """The plain Python value of a node, as `json.loads` would give it."""
    match node:
        case Scalar():
            return node.value
        case Sequence():
            return [to_data(item) for item in node.items]
        case Mapping():
            return {entry.key: to_data(entry.value) for entry in node.entries}
