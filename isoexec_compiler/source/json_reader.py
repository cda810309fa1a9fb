"""JSON by RFC 8259, for files named `.json`.

YAML 1.2 holds JSON as a subset, but the YAML parser at hand does not: it refuses surrogate pairs and a colon on the
next line, and takes trailing commas, comments and unquoted words that no JSON program would read.
"""

from __future__ import annotations

import json
import re

from isoexec_compiler.source import problems
from isoexec_compiler.source.text import Text
from isoexec_compiler.source.tree import TreeBuilder, UnreadableError, shorten
from isoexec_compiler.span import Span

_SPACE = re.compile("[ \t\n]*")
_TOKEN = re.compile(
    r"""(?P<mark>[{}\[\]:,])
    |(?P<string>"[^"\\]*(?:\\.[^"\\]*)*")
    |(?P<word>[-+.\w]+)""",
    re.VERBOSE | re.DOTALL,
)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LITERALS = ("true", "false", "null")
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def read_json(source: Text, builder: TreeBuilder) -> None:
    """Feed the one JSON value of `source` to `builder`."""
    tokens = _Tokens(source, builder)
    if not tokens.text:
        return
    _value(tokens, builder)
    if tokens.text:
        raise tokens.unexpected("the end of the file")


class _Tokens:
    """A cursor over the tokens of a text: `kind`, `text` and `span` are those of the token ahead, "" at the end."""

    def __init__(self, source: Text, builder: TreeBuilder) -> None:
        self._source = source
        self._builder = builder
        self._end = 0
        self.advance()

    def advance(self) -> None:
        space = _SPACE.match(self._source.text, self._end)
        start = space.end() if space else self._end
        token = _TOKEN.match(self._source.text, start)
        self.kind = (token.lastgroup or "") if token else ""
        self.text = token[0] if token else self._source.text[start : start + 1]
        self._end = start + len(self.text)
        self.span: Span = self._source.span(start, self._end)

    def take(self, mark: str) -> bool:
        """Step over `mark` if it is ahead."""
        if self.text != mark:
            return False
        self.advance()
        return True

    def unexpected(self, wanted: str) -> UnreadableError:
        """Record that something else than `wanted` is ahead."""
        seen = f"`{shorten(self.text)}`" if self.text else "the end of the file"
        self._builder.report(problems.SYNTAX.at(self.span, f"not valid JSON: expected {wanted}, found {seen}"))
        return UnreadableError()


def _value(tokens: _Tokens, builder: TreeBuilder) -> None:
    if tokens.text in ("{", "["):
        _collection(tokens, builder)
    elif tokens.kind == "string":
        _string(tokens, builder)
    elif tokens.text in _LITERALS or _NUMBER.fullmatch(tokens.text):
        builder.plain(tokens.text, tokens.span)
        tokens.advance()
    elif tokens.text in _NOT_FINITE:
        builder.report(problems.NOT_FINITE.at(tokens.span, f"`{tokens.text}` is not a finite float64"))
        builder.hole(tokens.span)
        tokens.advance()
    else:
        raise tokens.unexpected("a value")


def _collection(tokens: _Tokens, builder: TreeBuilder) -> None:
    mapping = tokens.text == "{"
    end = "}" if mapping else "]"
    builder.open(tokens.span, mapping=mapping)
    tokens.advance()
    first = True
    while tokens.text != end:
        if not first and not tokens.take(","):
            raise tokens.unexpected(f"`,` or `{end}`")
        first = False
        if mapping:
            if tokens.kind != "string":
                raise tokens.unexpected("a key in double quotes")
            _string(tokens, builder)
            if not tokens.take(":"):
                raise tokens.unexpected("`:`")
        _value(tokens, builder)
    builder.close(tokens.span)
    tokens.advance()


def _string(tokens: _Tokens, builder: TreeBuilder) -> None:
    try:
        value = json.loads(tokens.text)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg.lower().removesuffix(' at')} in a string"
        builder.report(problems.SYNTAX.at(tokens.span, message))
        raise UnreadableError from error
    if "\\" in tokens.text:
        builder.escaped(value, tokens.span)
    builder.scalar(value, value, tokens.span)
    tokens.advance()
