"""The command line: the only module that talks to a person. Data goes to stdout, talk to stderr.

Exit codes: 0 fine, 1 a contract or a tree is wrong, 2 usage or a broken installation.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from isoexec_compiler import pipeline, report, summary
from isoexec_compiler.codes import Code, all_codes
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.drift import Drift
from isoexec_compiler.source import readable
from isoexec_compiler.span import Span

UNREADABLE = Code(
    id="U401",
    title="file cannot be read or written",
    manual="A file named on the command line cannot be read, or the output folder cannot be written.\n",
)
WRONG, USAGE = 1, 2

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compile execution contracts to kernels, adapters and a lock; verify that nothing drifted.",
)


class Format(StrEnum):
    TEXT = "text"
    CONCISE = "concise"
    JSON = "json"
    GITHUB = "github"


class Level(StrEnum):
    DOCUMENT = "document"
    CONTRACT = "contract"
    PLAN = "plan"
    FILES = "files"


Contracts = Annotated[list[Path], typer.Argument(help="Contract files, YAML or JSON.", show_default=False)]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder that holds the generated packages.")]
Formats = Annotated[Format | None, typer.Option("--format", help="Of diagnostics and drift; github inside Actions.")]
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
        data = _read(path)
        if emit:
            sys.stdout.write(_emit(data, path, emit, format))
            continue
        package = pipeline.build(_load(data, path, format))
        folder = output / package.plan.contract
        try:
            changed = pipeline.save(package, folder)
            if deep:
                changed |= pipeline.seal(package, folder)
        except OSError as error:
            _fail(UNREADABLE, f"cannot write {folder}: {error.strerror}", format)
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
    from isoexec_compiler import claims

    wrong = False
    for path in contracts:
        package = pipeline.build(_load(_read(path), path, format))
        folder = output / package.plan.contract
        problems, drifts = pipeline.verify(package, folder)
        if deep and not (problems or drifts):
            problems, drifts = pipeline.verify_deep(package, folder)
        if not (problems or drifts):
            lacking = claims.shortfalls(package.plan, package.facts, package.tree, folder)
            drifts = lacking if require_evidence else ()
            sys.stderr.write("" if require_evidence else _drifts(lacking, path, folder, Format.TEXT))
        wrong |= bool(problems or drifts)
        sys.stdout.write(_problems(problems, {}, format) + _drifts(drifts, path, folder, format))
        if not (problems or drifts) and _format(format) is not Format.JSON:
            sys.stdout.write(f"{package.plan.contract}: verified, {len(package.tree)} files\n")
    raise typer.Exit(WRONG if wrong else 0)


@app.command()
def prove(
    contract: Annotated[Path, typer.Argument(help="A compiled contract.", show_default=False)],
    target: Annotated[str, typer.Option(help="Which kernels to examine.")],
    output: Output = Path("generated"),
    only: Annotated[list[str] | None, typer.Option(help="Laws or regions to restrict the run to.")] = None,
    seconds: Annotated[float, typer.Option(help="About how long the whole run may take.")] = 150.0,
    seed: Annotated[int, typer.Option(help="Of the drawn arguments.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller batches; the records say so.")] = False,
    format: Formats = None,
) -> None:
    """Examine the laws of a contract's generated kernels on this machine, and keep what was found as evidence."""
    from isoexec_compiler import evidence, proof_report
    from isoexec_compiler import prove as prover

    package = pipeline.build(_load(_read(contract), contract, format))
    folder = output / package.plan.contract
    _check_target(package.plan.targets, target)
    problems, drifts = pipeline.verify(package, folder)
    if problems or drifts:
        sys.stdout.write(_problems(problems, {}, format) + _drifts(drifts, contract, folder, format))
        raise typer.Exit(WRONG)
    work = prover.tasks(
        package, contract, folder, target, seed=seed, seconds=seconds, quick=quick, only=tuple(only or ())
    )
    results = []
    for number, result in enumerate(prover.prove(work), 1):
        sys.stderr.write(f"[{number}/{len(work)}] {proof_report.line(result)}")
        if result.record:
            evidence.write(folder, result.record)
        results.append(result)
    sys.stdout.write(proof_report.table(results))
    raise typer.Exit(0 if all(r.record and r.record.supports for r in results) else WRONG)


@app.command()
def reveal(
    contract: Annotated[Path, typer.Argument(help="A compiled contract.", show_default=False)],
    target: Annotated[str, typer.Option(help="Which kernels to look at.")],
    output: Output = Path("generated"),
    region: Annotated[list[str] | None, typer.Option(help="Matrix products to restrict it to.")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Also look at torch.mm, for comparison.")] = False,
    format: Formats = None,
) -> None:
    """Find the order in which matrix products really add, from their outputs alone; compare it with the contract."""
    from isoexec_compiler import reveal as finder

    package = pipeline.build(_load(_read(contract), contract, format))
    _check_target(package.plan.targets, target)
    agree = True
    for found in finder.reveal(package.plan, target, output / package.plan.contract, tuple(region or ()), stock=stock):
        agree &= found.agrees or found.stock
        sys.stdout.write(finder.sentence(found))
    raise typer.Exit(0 if agree else WRONG)


@app.command()
def support(contracts: Contracts, output: Output = Path("generated")) -> None:
    """Print the table of what the evidence of generated packages shows."""
    from isoexec_compiler import claims, proof_report

    packages = []
    for path in contracts:
        package = pipeline.build(_load(_read(path), path, None))
        folder = output / package.plan.contract
        found = claims.standings(package.plan, package.facts, package.tree, folder, here=False)
        packages.append((package.plan.contract, found))
    sys.stdout.write(proof_report.support(packages))


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
            _fail(UNREADABLE, f"cannot read {name}: {error.strerror}", format)
        if problems:
            _stop(problems, {}, format)
        facts.append(found)
    drifts = revisions.diff(*facts)
    sys.stdout.write(_drifts(drifts, Path(after), Path(after), format) or "no difference\n")
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

    data = _read(hf, format)
    text, problems = writer.contract_from(data, hf.as_posix(), name)
    if text is None:
        _stop(problems, {hf.as_posix(): readable(data)}, format)
    sys.stdout.write(text)


@app.command()
def schema() -> None:
    """Print the JSON Schema of contracts, for editors."""
    from isoexec_compiler.schema import schema_text

    sys.stdout.write(schema_text())


def _read(path: Path, format: Format | None = None) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _fail(UNREADABLE, f"cannot read {path}: {error.strerror}", format)


def _load(data: bytes, path: Path, format: Format | None) -> Contract:
    contract, problems = pipeline.load(data, path.as_posix())
    if contract is None:
        _stop(problems, {path.as_posix(): readable(data)}, format)
    sys.stderr.write(_problems(problems, {path.as_posix(): readable(data)}, format))
    return contract


def _emit(data: bytes, path: Path, level: Level, format: Format | None) -> str:
    from isoexec_compiler import emit

    if level is Level.DOCUMENT:
        document, problems = emit.document(data, path.as_posix())
        if document is None:
            _stop(problems, {path.as_posix(): readable(data)}, format)
        return document
    contract = _load(data, path, format)
    if level is Level.CONTRACT:
        return emit.text(contract)
    package = pipeline.build(contract)
    return emit.text(package.plan) if level is Level.PLAN else emit.text(dict(package.tree))


def _stop(problems: tuple[Diagnostic, ...], sources: dict[str, str], format: Format | None) -> NoReturn:
    text = _problems(problems, sources, format)
    (sys.stdout if _format(format) in (Format.JSON, Format.GITHUB) else sys.stderr).write(text)
    raise typer.Exit(WRONG)


def _check_target(targets: tuple[str, ...], target: str) -> None:
    from isoexec_compiler import machine

    if target not in targets:
        _usage(f"the contract has the targets {', '.join(targets)}, not {target}")
    try:
        machine.present(target)
    except (RuntimeError, ImportError) as error:
        _usage(str(error))


def _usage(message: str) -> NoReturn:
    sys.stderr.write(message + "\n")
    raise typer.Exit(USAGE)


def _fail(code: Code, message: str, format: Format | None) -> NoReturn:
    _stop((code.at(None, message),), {}, format)


def _format(format: Format | None) -> Format:
    return format or (Format.GITHUB if os.environ.get("GITHUB_ACTIONS") == "true" else Format.TEXT)


def _problems(problems: tuple[Diagnostic, ...], sources: dict[str, str], format: Format | None) -> str:
    match _format(format):
        case Format.CONCISE:
            return report.render_concise(problems)
        case Format.JSON:
            return report.render_json(problems) if problems else ""
        case Format.GITHUB:
            return report.render_github(problems)
    return report.render_text(problems, sources, color=sys.stderr.isatty() and "NO_COLOR" not in os.environ)


def _drifts(drifts: tuple[Drift, ...], contract: Path, folder: Path, format: Format | None) -> str:
    if _format(format) is Format.TEXT:
        return summary.drift_text(drifts, contract.as_posix(), folder)
    if _format(format) is Format.JSON:
        return summary.drift_json(drifts)
    place = Span(file=contract.as_posix(), line=1, column=1, end_line=1, end_column=1)
    return _problems(tuple(Diagnostic(code=d.code, message=d.sentence, span=place) for d in drifts), {}, format)


def main() -> None:
    """The `isoexec` program."""
    app()
