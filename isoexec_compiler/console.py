"""What the commands share: options, exit codes, reading a contract, and how problems and drift are said."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isoexec_compiler import pipeline, report, summary
from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.drift import Drift
from isoexec_compiler.source import readable
from isoexec_compiler.span import Span

UNREADABLE = Code(
    id="U401",
    title="file cannot be read or written",
    manual="A file named on the command line cannot be read, or the output folder cannot be written.\n",
)
WRONG, USAGE = 1, 2


class Format(StrEnum):
    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"


Contracts = Annotated[list[Path], typer.Argument(help="Contract files, YAML or JSON.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder that holds the generated packages.")]
Formats = Annotated[Format | None, typer.Option("--format", help="Of diagnostics and drift; github inside Actions.")]


def read(path: Path, format: Format | None = None) -> bytes:
    """The bytes of a file, or the end of the program with U401."""
    try:
        return path.read_bytes()
    except OSError as error:
        fail(UNREADABLE, f"cannot read {path}: {error.strerror}", format)


def load(data: bytes, path: Path, format: Format | None) -> Contract:
    """A checked contract, its warnings said; or the end of the program with what is wrong."""
    contract, problems = pipeline.load(data, path.as_posix())
    if contract is None:
        stop(problems, {path.as_posix(): readable(data)}, format)
    sys.stderr.write(problems_text(problems, {path.as_posix(): readable(data)}, format))
    return contract


def stop(problems: tuple[Diagnostic, ...], sources: dict[str, str], format: Format | None) -> NoReturn:
    """End the program because of these problems."""
    text = problems_text(problems, sources, format)
    (sys.stdout if chosen(format) in (Format.JSON, Format.GITHUB) else sys.stderr).write(text)
    raise typer.Exit(WRONG)


def usage(message: str) -> NoReturn:
    """End the program because it was called wrongly."""
    sys.stderr.write(message + "\n")
    raise typer.Exit(USAGE)


def fail(code: Code, message: str, format: Format | None) -> NoReturn:
    """End the program because of one problem that has no place in a file."""
    stop((code.at(None, message),), {}, format)


def chosen(format: Format | None) -> Format:
    """The format asked for; github inside Actions, text elsewhere."""
    return format or (Format.GITHUB if os.environ.get("GITHUB_ACTIONS") == "true" else Format.TEXT)


def problems_text(problems: tuple[Diagnostic, ...], sources: dict[str, str], format: Format | None) -> str:
    """Problems in a format."""
    match chosen(format):
        case Format.CONCISE:
            return report.render_concise(problems)
        case Format.JSON:
            return report.render_json(problems) if problems else ""
        case Format.GITHUB:
            return report.render_github(problems)
    return report.render_text(problems, sources, color=sys.stderr.isatty() and "NO_COLOR" not in os.environ)


def drifts_text(drifts: tuple[Drift, ...], contract: Path, folder: Path, format: Format | None) -> str:
    """Drift of a package in a format; diagnostics of its contract where the format has no form of its own."""
    if chosen(format) is Format.TEXT:
        return summary.drift_text(drifts, contract.as_posix(), folder)
    if chosen(format) is Format.JSON:
        return summary.drift_json(drifts)
    place = Span(file=contract.as_posix(), line=1, column=1, end_line=1, end_column=1)
    return problems_text(tuple(Diagnostic(code=d.code, message=d.sentence, span=place) for d in drifts), {}, format)
