"""Diagnostics as text: for people (`text`), editors (`concise`), programs (`json`) and GitHub annotations (`github`).

Whatever comes from a contract or a file name passes through `visible`: it cannot send control codes to a terminal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import groupby

from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.span import Span

LINE_WIDTH = 100
_BEFORE_MARK = 30
_UNSEEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs")
_COLORS = {"error": "1;31", "warning": "1;33", "label": "1;34", "frame": "1;34", "strong": "1"}
Paint = Callable[[str, str], str]


def render_concise(diagnostics: Iterable[Diagnostic]) -> str:
    """One line a problem: `path:line:col: CODE message`."""
    return "".join(
        f"{_place(problem.span, ': ')}{problem.code} {visible(problem.message)}\n" for problem in diagnostics
    )


def render_json(diagnostics: Iterable[Diagnostic]) -> str:
    """An array of objects with the fields of `Diagnostic`, in ASCII."""
    return json.dumps([asdict(problem) for problem in diagnostics], indent=2) + "\n"


def render_github(diagnostics: Iterable[Diagnostic]) -> str:
    """One GitHub Actions workflow command a problem, shown there as an annotation of the line."""
    return "".join(map(_annotation, diagnostics))


def render_text(diagnostics: Iterable[Diagnostic], sources: Mapping[str, str], color: bool = False) -> str:
    """A paragraph a problem, with the lines it is about.

    `sources` maps file names to their texts; of a file that is missing there, only the position is shown.
    """
    paint: Paint = _colored if color else lambda _style, text: text
    paragraphs = ("\n".join(_paragraph(problem, sources, paint)) + "\n" for problem in diagnostics)
    return "\n".join(paragraphs)


def visible(text: str) -> str:
    """`text` on one line, tabs as spaces, and characters that a terminal would obey or hide as `<U+001B>`."""
    return "".join(map(_cell, text))


def _annotation(problem: Diagnostic) -> str:
    properties = {"title": problem.code}
    if span := problem.span:
        properties = {"file": span.file, "line": str(span.line), "col": str(span.column)} | properties
    listed = ",".join(f"{key}={_escape(value, '%:,')}" for key, value in properties.items())
    lines = [problem.message, *(f"{key}: {text}" for key, text in _advice(problem))]
    return f"::{problem.severity} {listed}::{'%0A'.join(_escape(line, '%') for line in lines)}\n"


def _escape(text: str, special: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in special else c for c in visible(text))


def _advice(problem: Diagnostic) -> list[tuple[str, str]]:
    return [(key, text) for key, text in (("note", problem.note), ("help", problem.help)) if text]


def _place(span: Span | None, end: str) -> str:
    return f"{visible(span.file)}:{span.line}:{span.column}{end}" if span else ""


def _paragraph(problem: Diagnostic, sources: Mapping[str, str], paint: Paint) -> Iterator[str]:
    marks = [Label(span=problem.span, text="")] if problem.span else []
    marks += problem.labels
    margin = " " * max((len(str(mark.span.line)) for mark in marks), default=0)
    yield paint(problem.severity, f"{problem.severity}[{problem.code}]") + paint(
        "strong", f": {visible(problem.message)}"
    )
    files = sorted({mark.span.file for mark in marks}, key=lambda file: (file != marks[0].span.file, file))
    for file in files:
        here = [mark for mark in marks if mark.span.file == file]
        arrow = "-->" if file == files[0] else ":::"
        yield f"{margin}{paint('frame', arrow)} {_place(here[0].span, '')}"
        if file in sources:
            yield from _excerpt(here, problem, sources[file].split("\n"), margin, paint)
    for key, text in _advice(problem):
        yield f"{margin} {paint('frame', '=')} {paint('strong', key)}: {visible(text)}"


def _excerpt(marks: list[Label], problem: Diagnostic, lines: list[str], margin: str, paint: Paint) -> Iterator[str]:
    bar = paint("frame", "|")
    yield f"{margin} {bar}"
    previous = None
    inside = sorted((mark for mark in marks if mark.span.line <= len(lines)), key=lambda mark: mark.span)
    for number, group in groupby(inside, key=lambda mark: mark.span.line):
        here = list(group)
        if previous is not None and number > previous + 1:
            yield paint("frame", "...")
        previous = number
        cells = [_cell(character) for character in lines[number - 1]]
        first, last = _window(cells, here[0].span.column - 1)
        head = "…" if first else ""
        tail = "…" if last < len(cells) else ""
        shown = "".join(cells[first:last])
        yield f"{paint('frame', str(number).rjust(len(margin)))} {bar} {head}{shown}{tail}".rstrip()
        for mark in here:
            style, caret = (problem.severity, "^") if mark.span is problem.span else ("label", "-")
            end = mark.span.end_column - 1 if mark.span.end_line == number else len(cells)
            start = min(max(mark.span.column - 1, first), last)
            indent = " " * (len(head) + _width(cells[first:start]))
            carets = caret * max(1, _width(cells[start : min(end, last)]))
            yield f"{margin} {bar} {indent}{paint(style, f'{carets} {visible(mark.text)}'.rstrip())}"
    yield f"{margin} {bar}"


def _window(cells: list[str], mark: int) -> tuple[int, int]:
    """The range of cells to show, so that the mark is seen and the line is no wider than `LINE_WIDTH`."""
    first = 0 if _width(cells) <= LINE_WIDTH or mark < LINE_WIDTH - _BEFORE_MARK else mark - _BEFORE_MARK
    room = LINE_WIDTH
    for last in range(first, len(cells)):
        room -= _width([cells[last]])
        if room < 0:
            return first, last
    return first, len(cells)


def _cell(character: str) -> str:
    if character == "\t":
        return "    "
    unseen = character != " " and unicodedata.category(character) in _UNSEEN
    return f"<U+{ord(character):04X}>" if unseen else character


def _width(cells: Iterable[str]) -> int:
    return sum(map(_character_width, "".join(cells)))


def _character_width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _colored(style: str, text: str) -> str:
    return f"\x1b[{_COLORS[style]}m{text}\x1b[0m"
