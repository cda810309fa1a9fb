"""What holds for the reader on every input."""

from __future__ import annotations

import json

from isoexec_compiler.diagnostics import Diagnostic, sort
from isoexec_compiler.report import render_concise, render_github, render_json, render_text
from isoexec_compiler.source import Document, Mapping, Node, Scalar, Sequence, Span, read, readable, to_data

OPENERS = ('"', "'", "|", ">")


def check_read(data: bytes, name: str) -> Document | None:
    """Read `data` and assert what must hold for its document and its problems."""
    document, problems = read(data, name)
    text = readable(data)
    assert (document is None) == bool(problems)
    check_problems(problems, text, name)
    if document is not None:
        assert document.text == text
        check_spans(document.root, text.split("\n"))
        check_data(document)
        check_line_endings(document)
    return document


def check_problems(problems: tuple[Diagnostic, ...], text: str, name: str) -> None:
    """Problems are sorted, lie inside the text, and show nothing that a terminal would obey."""
    assert problems == sort(problems)
    lines = text.split("\n")
    for problem in problems:
        assert problem.span is not None
        assert problem.code.startswith("S")
        for span in (problem.span, *(label.span for label in problem.labels)):
            check_inside(span, lines)
    shown = render_text(problems, {name: text}) + render_concise(problems) + render_github(problems)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert len(json.loads(render_json(problems))) == len(problems)


def check_inside(span: Span, lines: list[str]) -> None:
    """The span is a range of places in the text."""
    assert (1, 1) <= (span.line, span.column) <= (span.end_line, span.end_column)
    for line, column in ((span.line, span.column), (span.end_line, span.end_column)):
        assert line <= len(lines)
        assert column <= len(lines[line - 1]) + 1


def check_spans(node: Node, lines: list[str]) -> None:
    """Spans are nested and in order, and the text at a leaf is the leaf."""
    check_inside(node.span, lines)
    if isinstance(node, Scalar):
        if node.span.line == node.span.end_line:
            written = lines[node.span.line - 1][node.span.column - 1 : node.span.end_column - 1]
            assert written == node.text or written.startswith(OPENERS)
        return
    children: list[Span] = []
    if isinstance(node, Sequence):
        children = [item.span for item in node.items]
    elif isinstance(node, Mapping):
        children = [span for entry in node.entries for span in (entry.key_span, entry.value.span)]
        assert len(set(node.keys())) == len(node.entries)
    place = (node.span.line, node.span.column)
    for span in children:
        assert place <= (span.line, span.column)
        place = (span.end_line, span.end_column)
    assert place <= (node.span.end_line, node.span.end_column)
    for child in node.items if isinstance(node, Sequence) else [entry.value for entry in node.entries]:
        check_spans(child, lines)


def check_data(document: Document) -> None:
    """The data is plain JSON; written as JSON, both readers give it back, and Python's reader agrees with ours."""
    data = to_data(document.root)
    written = json.dumps(data, allow_nan=False)
    as_json, problems = read(written.encode(), "again.json")
    assert as_json is not None, problems
    assert repr(to_data(as_json.root)) == repr(data)
    if document.name.endswith(".json"):
        assert repr(json.loads(document.text)) == repr(data)


def check_line_endings(document: Document) -> None:
    """With CR LF the document is the same, places too."""
    again, problems = read(document.text.replace("\n", "\r\n").encode(), document.name)
    assert again is not None, problems
    assert repr(again) == repr(document)
