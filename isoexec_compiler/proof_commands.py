"""The commands about evidence: `prove`, `reveal` and `support`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from isoexec_compiler import console, pipeline


def prove(
    contract: Annotated[Path, typer.Argument(help="A compiled contract.", show_default=False)],
    target: Annotated[str, typer.Option(help="Which kernels to examine.")],
    output: console.Output = Path("generated"),
    only: Annotated[list[str] | None, typer.Option(help="Laws or regions to restrict the run to.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Only laws that the kept evidence does not show.")] = False,
    seconds: Annotated[float, typer.Option(help="About how long the whole run may take.")] = 150.0,
    seed: Annotated[int, typer.Option(help="Of the drawn arguments.")] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller batches; the records say so.")] = False,
    format: console.Formats = None,
) -> None:
    """Examine the laws of a contract's generated kernels on this machine, and keep what was found as evidence."""
    from isoexec_compiler import evidence, proof_report
    from isoexec_compiler import prove as prover

    package = pipeline.build(console.load(console.read(contract), contract, format))
    folder = output / package.plan.contract
    _check_target(package.plan.targets, target)
    problems, drifts = pipeline.verify(package, folder)
    if problems or drifts:
        sys.stdout.write(
            console.problems_text(problems, {}, format) + console.drifts_text(drifts, contract, folder, format)
        )
        raise typer.Exit(console.WRONG)
    names = tuple(only or ())
    work = prover.tasks(
        package, contract, folder, target, seed=seed, seconds=seconds, quick=quick, only=names, missing=missing
    )
    results = []
    for number, result in enumerate(prover.prove(work), 1):
        sys.stderr.write(f"[{number}/{len(work)}] {proof_report.line(result)}")
        if result.record:
            evidence.write(folder, result.record)
        results.append(result)
    sys.stdout.write(proof_report.table(results))
    raise typer.Exit(0 if all(r.record and r.record.supports for r in results) else console.WRONG)


def reveal(
    contract: Annotated[Path, typer.Argument(help="A compiled contract.", show_default=False)],
    target: Annotated[str, typer.Option(help="Which kernels to look at.")],
    output: console.Output = Path("generated"),
    region: Annotated[list[str] | None, typer.Option(help="Matrix products to restrict it to.")] = None,
    stock: Annotated[bool, typer.Option("--stock", help="Also look at torch.mm, for comparison.")] = False,
    format: console.Formats = None,
) -> None:
    """Find the order in which matrix products really add, from their outputs alone; compare it with the contract."""
    from isoexec_compiler import reveal as finder

    package = pipeline.build(console.load(console.read(contract), contract, format))
    _check_target(package.plan.targets, target)
    agree = True
    for found in finder.reveal(package.plan, target, output / package.plan.contract, tuple(region or ()), stock=stock):
        agree &= found.agrees or found.stock
        sys.stdout.write(finder.sentence(found))
    raise typer.Exit(0 if agree else console.WRONG)


def support(contracts: console.Contracts, output: console.Output = Path("generated")) -> None:
    """Print the table of what the evidence of generated packages shows."""
    from isoexec_compiler import claims, evidence, proof_report

    packages = []
    for path in contracts:
        package = pipeline.build(console.load(console.read(path), path, None))
        folder = output / package.plan.contract
        records = (record for _, record in evidence.read(folder) if record)
        found = claims.standings(package.plan, package.facts, package.tree, records, here=False)
        packages.append((package.plan.contract, found))
    sys.stdout.write(proof_report.support(packages))


def _check_target(targets: tuple[str, ...], target: str) -> None:
    from isoexec_compiler import machine

    if target not in targets:
        console.usage(f"the contract has the targets {', '.join(targets)}, not {target}")
    try:
        machine.present(target)
    except (RuntimeError, ImportError) as error:
        console.usage(str(error))
