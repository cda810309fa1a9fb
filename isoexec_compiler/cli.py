"""The command line: with its two helpers all that talks to a person. Data goes to stdout, talk to stderr.

Exit codes: 0 fine, 1 a contract or a tree is wrong, 2 usage or a broken installation.
"""

from __future__ import annotations

import gc
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from isoexec_compiler import pipeline, proof_commands, summary
from isoexec_compiler.codes import all_codes
from isoexec_compiler.console import (
    UNREADABLE,
    USAGE,
    WRONG,
    Contracts,
    Format,
    Formats,
    Output,
    chosen,
    drifts_text,
    fail,
    load,
    problems_text,
    read,
    stop,
)
from isoexec_compiler.diagnostics import suggest
from isoexec_compiler.drift import Drift
from isoexec_compiler.pipeline import Package
from isoexec_compiler.source import readable

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compile execution contracts to kernels, adapters and a lock; verify that nothing drifted.",
)


class Level(StrEnum):
    DOCUMENT = "document"
    CONTRACT = "contract"
    PLAN = "plan"
    FILES = "files"


Deep = Annotated[bool, typer.Option("--deep", help="Also compile each kernel for its target and seal the PTX.")]


@app.command("compile")
def compile_(
    contracts: Contracts,
    output: Output = Path("generated"),
    format: Formats = None,
    emit: Annotated[Level | None, typer.Option(help="Print one level of the pipeline as JSON, write nothing.")] = None,
    deep: Deep = False,
) -> None:
    """Compile contracts into generated packages; prints `unchanged` where nothing had to be written."""
    for path in contracts:
        data = read(path)
        if emit:
            sys.stdout.write(_emit(data, path, emit, format))
            continue
        package = pipeline.build(load(data, path, format))
        folder = output / package.plan.contract
        try:
            changed = pipeline.save(package, folder)
            if deep:
                changed |= pipeline.seal(package, folder)
        except OSError as error:
            fail(UNREADABLE, f"cannot write {folder}: {error.strerror}", format)
        sys.stdout.write(summary.package(package, folder, changed=changed))


@app.command()
def verify(
    contracts: Contracts,
    output: Output = Path("generated"),
    format: Formats = None,
    deep: Deep = False,
    require_evidence: Annotated[
        bool, typer.Option("--require-evidence", help="A claim without evidence that counts is an error.")
    ] = False,
) -> None:
    """Check that generated packages are what their contracts compile to, and say why where they are not."""
    wrong = False
    for path in contracts:
        package = pipeline.build(load(read(path), path, format))
        folder = output / package.plan.contract
        problems, drifts = pipeline.verify(package, folder)
        if deep and not (problems or drifts):
            problems, drifts = pipeline.verify_deep(package, folder)
        if not (problems or drifts):
            drifts, note = _evidence(package, folder, require_evidence)
            sys.stderr.write(note)
        wrong |= bool(problems or drifts)
        sys.stdout.write(problems_text(problems, {}, format) + drifts_text(drifts, path, folder, format))
        if not (problems or drifts) and chosen(format) is not Format.JSON:
            sys.stdout.write(f"{package.plan.contract}: verified, {len(package.tree)} files\n")
    raise typer.Exit(WRONG if wrong else 0)


def _evidence(package: Package, folder: Path, required: bool) -> tuple[tuple[Drift, ...], str]:
    """What the evidence of a package says against it, and a remark where there is none; what it does not say is asked
    only where it must say all, or where a record speaks against a kernel."""
    if not required:
        from isoexec_compiler import evidence

        records = [record for _, record in evidence.read(folder)]
        if all(record and record.supports for record in records):
            remark = "no evidence; --require-evidence lists what its claims need"
            return (), "" if records else f"{package.plan.contract}: {remark}\n"
    from isoexec_compiler import claims

    lacking = claims.shortfalls(package.plan, package.facts, package.tree, folder)
    return lacking if required else tuple(one for one in lacking if one.code in claims.AGAINST), ""


app.command()(proof_commands.prove)
app.command()(proof_commands.reveal)
app.command()(proof_commands.support)


@app.command()
def diff(
    before: Annotated[str, typer.Argument(help="A lock: a path, or REVISION:path as git names it.")],
    after: Annotated[str, typer.Argument(help="Another lock.")],
    format: Formats = None,
) -> None:
    """Compare two locks and say which identity each fact rotates."""
    from isoexec_compiler import revisions

    facts = []
    for name in (before, after):
        try:
            found, problems = revisions.lock_facts(name)
        except OSError as error:
            fail(UNREADABLE, f"cannot read {name}: {error.strerror}", format)
        if problems:
            stop(problems, {}, format)
        facts.append(found)
    drifts = revisions.diff(*facts)
    sys.stdout.write(drifts_text(drifts, Path(after), Path(after), format) or "no difference\n")
    raise typer.Exit(WRONG if drifts else 0)


@app.command()
def explain(code: Annotated[str, typer.Argument(help="A diagnostic code, such as L312.", show_default=False)]) -> None:
    """Print the manual text of a diagnostic code."""
    codes = all_codes()
    known = codes.get(code.upper())
    if not known:
        near = suggest(code.upper(), codes)
        sys.stderr.write(f"no code {code}" + (f"; did you mean {near}?\n" if near else "\n"))
        raise typer.Exit(USAGE)
    sys.stdout.write(f"{known.id}: {known.title}\n\n{known.manual.strip()}\n")


@app.command()
def init(
    hf: Annotated[Path, typer.Option("--hf", help="A Hugging Face config.json.", show_default=False)],
    name: Annotated[str, typer.Option(help="The contract's name, an identifier.")] = "",
    format: Formats = None,
) -> None:
    """Write a contract for a Hugging Face model to stdout."""
    from isoexec_compiler import init as writer

    data = read(hf, format)
    text, problems = writer.contract_from(data, hf.as_posix(), name)
    if text is None:
        stop(problems, {hf.as_posix(): readable(data)}, format)
    sys.stdout.write(text)


@app.command()
def schema() -> None:
    """Print the JSON Schema of contracts, for editors."""
    from isoexec_compiler.schema import schema_text

    sys.stdout.write(schema_text())


def _emit(data: bytes, path: Path, level: Level, format: Format | None) -> str:
    from isoexec_compiler import emit

    if level is Level.DOCUMENT:
        document, problems = emit.document(data, path.as_posix())
        if document is None:
            stop(problems, {path.as_posix(): readable(data)}, format)
        return document
    contract = load(data, path, format)
    if level is Level.CONTRACT:
        return emit.text(contract)
    package = pipeline.build(contract)
    return emit.text(package.plan) if level is Level.PLAN else emit.text(dict(package.tree))


def main() -> None:
    """The `isoexec` program: short-lived, so that collecting garbage is a tenth of its time for nothing."""
    gc.disable()
    app()
