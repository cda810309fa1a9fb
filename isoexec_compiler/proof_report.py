"""What `prove` says: a line for every law on every kernel, then a table; and the support table of the docs."""

from __future__ import annotations

from collections.abc import Iterable

from isoexec_compiler.claims import EVERY_KERNEL, Standing
from isoexec_compiler.evidence import Record
from isoexec_compiler.prove import Result

COLUMNS = ("region", "law", "outcome", "compared", "differing", "control", "refused", "seconds")


def line(result: Result) -> str:
    """One law on one kernel, when it is done."""
    found = result.record
    what = f"{result.task.module} / {result.task.law} ({result.task.target})"
    if found is None:
        return f"{what}: failed after {result.seconds:.1f} s: {result.error}\n"
    bits = f"{found.differing:,} of {found.compared:,} differ; control {found.control_differing:,}"
    return f"{what}: {found.outcome}, {bits}, {result.seconds:.1f} s\n"


def table(results: Iterable[Result]) -> str:
    """All results as aligned columns, law by law, with totals beneath."""
    rows = [COLUMNS]
    total = differing = 0
    for result in sorted(results, key=lambda one: (one.task.law, one.task.module)):
        found = result.record
        if found is None:
            rows.append((result.task.module, result.task.law, "failed", "", "", "", "", f"{result.seconds:.1f}"))
            continue
        total, differing = total + found.compared, differing + found.differing
        rows.append(
            (
                found.module,
                found.law,
                found.outcome if found.error is None else f"{found.outcome} {found.error:.2g}",
                f"{found.compared:,}",
                f"{found.differing:,}",
                f"{found.control_differing:,}",
                str(len(found.refused)),
                f"{result.seconds:.1f}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    left = 3
    text = "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
    return f"{text}\n{total:,} elements compared, {differing:,} differing\n"


def support(packages: Iterable[tuple[str, list[Standing]]]) -> str:
    """The support table: for every contract and target, each claim with the laws that stand behind it."""
    lines = [
        "# Support",
        "",
        "What the committed evidence shows, and nothing else. Written by `isoexec support`.",
        "",
        "`bitwise` is said only where every law of a claim was examined on the kernels as they are now, compared the",
        "stated number of elements, found 0 that differ in any bit, and was seen to fail on a negative control.",
        "",
        "| contract | target | claim | laws with evidence | elements compared | differing | standing | seen on |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for contract, standings in packages:
        groups: dict[tuple[str, str], list[Standing]] = {}
        for standing in standings:
            groups.setdefault((standing.need.kernel.target, standing.need.claim), []).append(standing)
        for (target, claim), group in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1] != EVERY_KERNEL)):
            held = [s.record for s in group if s.record and not s.reason]
            compared, differing = sum(r.compared for r in held), sum(r.differing for r in held)
            places = "; ".join(sorted({_place(record) for record in held}))
            cells = f"{len(held)} of {len(group)} | {compared:,} | {differing:,} | {_standing(group)} | {places}"
            lines.append(f"| {contract} | {target} | {claim} | {cells} |")
    return "\n".join(lines) + "\n"


def _place(record: Record) -> str:
    return ", ".join([record.device, *(f"{name} {version}" for name, version in sorted(record.toolchain.items()))])


def _standing(group: list[Standing]) -> str:
    if any(s.reason.startswith("refuted") for s in group):
        return "refuted"
    if all(not s.reason for s in group):
        return "bitwise"
    return "no evidence" if all(s.reason for s in group) else "in part"
