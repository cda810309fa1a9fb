"""YAML, from libyaml's events: the tree is ours, so nesting and aliases are refused before they cost anything.

PyYAML's parser in Python is no substitute: it reads a few texts otherwise, and is too slow for a megabyte.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import yaml

from isoexec_compiler.diagnostics import Label
from isoexec_compiler.source import problems
from isoexec_compiler.source.text import MAX_PROBLEMS, Text
from isoexec_compiler.source.tree import TreeBuilder, UnreadableError, shorten
from isoexec_compiler.span import Span

_PLAIN = (None, "")


def read_yaml(source: Text, builder: TreeBuilder) -> None:
    """Feed the one YAML document of `source` to `builder`."""
    for match in islice(re.finditer("\t+", source.text), MAX_PROBLEMS):
        builder.report(problems.TAB.at(source.span(*match.span()), "tabs are not allowed", help="use spaces"))
    try:
        documents = 0
        for event in yaml.parse(source.text.replace("\t", " "), Loader=yaml.CSafeLoader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                _start_document(event, documents, source, builder)
            else:
                _feed(event, source, builder)
    except yaml.MarkedYAMLError as error:
        _syntax(error, source, builder)


def _start_document(event: Any, number: int, source: Text, builder: TreeBuilder) -> None:
    span = _span(source, event)
    if event.version or event.tags:
        builder.report(problems.DIRECTIVE.at(span, "directives are not part of the language"))
    if number > 1:
        builder.report(problems.SECOND_DOCUMENT.at(span, "a second document starts here"))
        raise UnreadableError


def _feed(event: Any, source: Text, builder: TreeBuilder) -> None:
    span = _span(source, event)
    if isinstance(event, yaml.AliasEvent):
        builder.report(problems.ANCHOR.at(span, f"alias `*{shorten(event.anchor or '')}`", help="write the value out"))
        builder.hole(span)
    elif isinstance(event, yaml.CollectionEndEvent):
        closed_by_bracket = (span.line, span.column) != (span.end_line, span.end_column)
        builder.close(span if closed_by_bracket else None)
    elif isinstance(event, (yaml.ScalarEvent, yaml.CollectionStartEvent)):
        if event.anchor is not None:
            message = f"anchor `&{shorten(event.anchor)}`"
            builder.report(problems.ANCHOR.at(span, message, help="remove it"))
        if event.tag is not None:
            message = f"tag `{shorten(event.tag)}`"
            builder.report(problems.TAG.at(span, message, help="remove it; quotes make a string"))
        if isinstance(event, yaml.ScalarEvent):
            _scalar(event, span, builder)
        else:
            builder.open(span, mapping=isinstance(event, yaml.MappingStartEvent))


def _scalar(event: Any, span: Span, builder: TreeBuilder) -> None:
    if event.style in _PLAIN:
        builder.plain(event.value, span)
        return
    if event.style == '"':
        builder.escaped(event.value, span)
    builder.scalar(event.value, event.value, span)


def _syntax(error: yaml.MarkedYAMLError, source: Text, builder: TreeBuilder) -> None:
    labels: tuple[Label, ...] = ()
    if error.context and error.context_mark:
        labels = (Label(span=_at(error.context_mark, source), text=error.context),)
    place = _at(error.problem_mark, source)
    if "nesting depth" in str(error.problem):
        raise builder.too_deep(place)
    builder.report(problems.SYNTAX.at(place, f"not valid YAML: {error.problem}", labels=labels))


def _span(source: Text, event: Any) -> Span:
    start, end = event.start_mark, event.end_mark
    if end.line >= len(source.line_starts):  # libyaml supplies a last line feed that is missing
        return source.span(min(start.index, len(source.text)), len(source.text))
    return Span(
        file=source.name, line=start.line + 1, column=start.column + 1, end_line=end.line + 1, end_column=end.column + 1
    )


def _at(mark: Any, source: Text) -> Span:
    offset = min(mark.index, len(source.text))
    return source.span(offset, offset)
