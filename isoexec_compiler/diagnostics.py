"""Problems as data: what is wrong, where, and what would put it right. `report` turns them into text."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from isoexec_compiler.span import Span

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A second place that matters to a problem, such as the first of two equal keys."""

    span: Span = field(compare=False)
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One problem. `note` adds a fact, `help` says what to do; neither repeats the message."""

    code: str
    message: str
    span: Span | None = field(default=None, compare=False)
    labels: tuple[Label, ...] = ()
    note: str | None = None
    help: str | None = None
    severity: Severity = "error"


def sort(diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Order by file, position and code, problems without a place first; equal problems at one place are kept once."""

    def key(diagnostic: Diagnostic) -> tuple[str, int, int, str, str]:
        span = diagnostic.span
        file, line, column = (span.file, span.line, span.column) if span else ("", 0, 0)
        return file, line, column, diagnostic.code, diagnostic.message

    unique = {(diagnostic, diagnostic.span): diagnostic for diagnostic in diagnostics}
    return tuple(sorted(unique.values(), key=key))


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Whether any of the problems is an error."""
    return any(diagnostic.severity == "error" for diagnostic in diagnostics)


def suggest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` was probably meant to be, or None when nothing is near.

    Case and the choice between `-`, space and `_` count for nothing, nor does the order of `candidates`.
    """
    longest_identifier = 80
    if len(word) > longest_identifier:
        return None
    normal = word.strip().lower().replace("-", "_").replace(" ", "_")
    near = difflib.get_close_matches(normal, sorted(candidates), n=1, cutoff=0.65)
    return near[0] if near else None
