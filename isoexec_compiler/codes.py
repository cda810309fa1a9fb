"""Diagnostic codes.

A code is declared once, as a module-level `Code`, beside the rule that reports it. Nothing else lists it: `all_codes`
finds every declaration in the package. The first letter names the area:

    S0xx  source text         C1xx  schema and binding      K2xx  checks
    L3xx  lock and drift      U4xx  usage
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import isoexec_compiler
from isoexec_compiler.diagnostics import Diagnostic, Label, Severity
from isoexec_compiler.span import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """One rule: its id, a title of a few words, and the manual text that `isoexec explain ID` prints.

    The manual says what causes the problem, shows an example that has it (indented by four spaces), and how to fix it.
    """

    id: str
    title: str
    manual: str
    severity: Severity = "error"

    def at(
        self,
        span: Span | None,
        message: str,
        *,
        labels: tuple[Label, ...] = (),
        note: str | None = None,
        help: str | None = None,
    ) -> Diagnostic:
        """A problem with this code at `span`."""
        return Diagnostic(
            code=self.id, message=message, span=span, labels=labels, note=note, help=help, severity=self.severity
        )


@cache
def all_codes() -> Mapping[str, Code]:
    """Every code declared in the package by id, in order of id. Raises ValueError when two declarations share an id."""
    found: dict[str, Code] = {}
    for module in pkgutil.walk_packages(isoexec_compiler.__path__, "isoexec_compiler."):
        if module.name.endswith(".__main__"):
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Code) and found.setdefault(value.id, value) is not value:
                raise ValueError(f"{value.id} is declared twice: {found[value.id].title!r} and {value.title!r}")
    return dict(sorted(found.items()))


def explain(code: Code) -> str:
    """The manual page of a code, as Markdown."""
    return f"## {code.id}: {code.title}\n\n{code.manual.strip()}\n"


def manual() -> str:
    """The manual of every code, as one Markdown document."""
    head = "# Diagnostics\n\n`isoexec explain CODE` prints one entry. Generated from the codes in `isoexec_compiler`.\n"
    return "\n".join([head, *map(explain, all_codes().values())])
