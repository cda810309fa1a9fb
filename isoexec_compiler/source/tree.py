"""Builds the tree from a parser's events, and holds it to the rules that YAML and JSON share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.source import problems
from isoexec_compiler.source.nodes import Entry, Mapping, Node, Scalar, Sequence, Value
from isoexec_compiler.source.scalars import resolve
from isoexec_compiler.source.text import MAX_PROBLEMS, character_name, is_composed, is_hidden
from isoexec_compiler.span import Span

MAX_DEPTH = 32
MAX_NODES = 100_000
IDENTIFIER = re.compile("[a-z][a-z0-9_]*")


class UnreadableError(Exception):
    """Reading cannot go on; the problem is recorded."""


@dataclass(slots=True)
class _Open:
    """A collection whose end has not been read. `keys` is None for a sequence."""

    span: Span
    items: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    keys: dict[str, Span] | None = None
    key: tuple[str, Span] | None = None
    awaits_value: bool = False


class TreeBuilder:
    """Takes `plain`, `scalar`, `hole`, `open` and `close` in the order of the text; gathers `root` and `found`."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self.found: list[Diagnostic] = []
        self._stack: list[_Open] = []
        self._nodes = 0

    def report(self, problem: Diagnostic) -> None:
        """Record a problem; raises UnreadableError when there are so many that more would not help."""
        self.found.append(problem)
        if len(self.found) > MAX_PROBLEMS:
            raise UnreadableError

    def scalar(self, value: Value, text: str, span: Span) -> None:
        """A leaf, or the key of an entry."""
        self._count(span)
        if self._at_key():
            self._begin_entry(value, text, span)
        else:
            self._add(Scalar(value=value, text=text, span=span))

    def plain(self, text: str, span: Span) -> None:
        """A scalar without quotes, whose value follows from the core schema."""
        value: Value = 0
        try:
            value = resolve(text)
        except OverflowError:
            message = f"`{shorten(text)}` does not fit in 64 bits"
            self.report(problems.INTEGER_RANGE.at(span, message))
        except ValueError:
            message = f"`{shorten(text)}` is not a finite float64"
            self.report(problems.NOT_FINITE.at(span, message))
        self.scalar(value, text, span)

    def escaped(self, value: str, span: Span) -> None:
        """Check a string whose escapes may stand for characters that the text itself may not hold."""
        for character in value:
            if is_hidden(character):
                message = f"an escape stands for the hidden character {character_name(character)}"
                self.report(problems.HIDDEN_CHARACTER.at(span, message))
                return
        if not is_composed(value):
            message = "the string is not in normal form C once its escapes are read"
            self.report(problems.NOT_COMPOSED.at(span, message))

    def hole(self, span: Span) -> None:
        """A node that was refused and stands for nothing."""
        self._count(span)
        if self._at_key():
            self._stack[-1].awaits_value = True
        else:
            self._add(Scalar(value=None, text="", span=span))

    def open(self, span: Span, *, mapping: bool) -> None:
        """The start of a mapping or sequence."""
        self._count(span)
        if len(self._stack) == MAX_DEPTH:
            raise self.too_deep(span)
        self._stack.append(_Open(span=span, keys={} if mapping else None))

    def too_deep(self, span: Span) -> UnreadableError:
        """Record that nesting goes too deep at `span`."""
        self.report(problems.TOO_DEEP.at(span, f"values are nested more than {MAX_DEPTH} levels deep"))
        return UnreadableError()

    def close(self, end: Span | None) -> None:
        """The end of the innermost collection: at the end of `end`, or of its last node when `end` is None."""
        opened = self._stack.pop()
        last = opened.entries[-1].value if opened.entries else opened.items[-1] if opened.items else opened
        span = _join(opened.span, end or last.span)
        if opened.keys is None:
            node: Node = Sequence(items=tuple(opened.items), span=span)
        else:
            node = Mapping(entries=tuple(opened.entries), span=span)
        if self._at_key():
            kind = "list" if opened.keys is None else "mapping"
            self.report(problems.KEY_NOT_STRING.at(span, f"a key is a name, not a {kind}"))
            self._stack[-1].awaits_value = True
        else:
            self._add(node)

    def _count(self, span: Span) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            message = f"the file holds more than {MAX_NODES:,} keys and values"
            self.report(problems.TOO_MANY_NODES.at(span, message))
            raise UnreadableError

    def _at_key(self) -> bool:
        return bool(self._stack) and self._stack[-1].keys is not None and not self._stack[-1].awaits_value

    def _add(self, node: Node) -> None:
        if not self._stack:
            self.root = node
            return
        opened = self._stack[-1]
        if opened.keys is None:
            opened.items.append(node)
            return
        opened.awaits_value = False
        if opened.key:
            name, span = opened.key
            opened.entries.append(Entry(key=name, key_span=span, value=node))
            opened.key = None

    def _begin_entry(self, value: Value, text: str, span: Span) -> None:
        opened = self._stack[-1]
        opened.awaits_value = True
        assert opened.keys is not None
        if problem := _key_problem(value, text, span, opened.keys):
            self.report(problem)
            return
        opened.key = (text, span)
        opened.keys[text] = span


def _key_problem(value: Value, text: str, span: Span, earlier: dict[str, Span]) -> Diagnostic | None:
    if text == "<<":
        return problems.MERGE_KEY.at(span, "merge keys are not part of the language", help="write the merged keys out")
    if not isinstance(value, str):
        shown = f"`{shorten(text)}`" if text else "nothing"
        return problems.KEY_NOT_STRING.at(span, f"a key is a name, not {shown}")
    if text in earlier:
        first = earlier[text]
        message = f"key `{shorten(text)}` is given twice, first on line {first.line}"
        return problems.DUPLICATE_KEY.at(span, message, labels=(Label(span=first, text="first given here"),))
    if not IDENTIFIER.fullmatch(text):
        near = re.sub("[- .]+", "_", text.lower())
        help = f"write `{shorten(near)}`" if IDENTIFIER.fullmatch(near) else None
        message = f"key `{shorten(text)}` is not made of lower-case letters, digits and `_`, starting with a letter"
        return problems.KEY_NOT_IDENTIFIER.at(span, message, help=help)
    return None


def _join(start: Span, end: Span) -> Span:
    return Span(file=start.file, line=start.line, column=start.column, end_line=end.end_line, end_column=end.end_column)


def shorten(text: str) -> str:
    """`text`, cut to what a message has room for."""
    room = 60
    return text if len(text) <= room else text[: room - 1] + "…"
