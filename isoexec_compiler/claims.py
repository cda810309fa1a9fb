"""Which laws each claim of a contract needs, and for which of them a package has evidence that counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from isoexec_compiler import evidence, machine
from isoexec_compiler.codes import Code
from isoexec_compiler.drift import Drift
from isoexec_compiler.evidence import Record
from isoexec_compiler.identity import Facts
from isoexec_compiler.law import Law, laws
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.render import Tree

MISSING = Code(
    id="L330",
    title="claim without evidence",
    manual="""A claim of the contract, or what every kernel owes, needs laws that nobody has examined on the device yet.

Run `isoexec prove` on the contract for that target, on a machine that has it, and commit `evidence/`.
""",
    severity="warning",
)
STALE = Code(
    id="L331",
    title="evidence is stale",
    manual="""There is evidence, but of another kernel text, launch table, architecture or toolchain than the package
and this machine have now. It says nothing of what would run.

Run `isoexec prove` again, and commit `evidence/`.
""",
    severity="warning",
)
REFUTED = Code(
    id="L332",
    title="evidence refutes a claim",
    manual="""A law was examined on this very kernel and did not hold: bits differed, an error exceeded its bound, or
the comparison could not have failed (`blind`), so that it shows nothing.

Read the record that the message names. Correct the kernel, or do not claim what it does not keep.
""",
)
ALTERED = Code(
    id="L333",
    title="evidence altered",
    manual="""A file in `evidence/` is not a record whose SHA-256 is its name, or its outcome is not the one that its
own counts imply: it was edited, cut off, or merged.

Restore it from version control, or run `isoexec prove` again.
""",
)
AGAINST = frozenset({REFUTED.id, ALTERED.id})
EVERY_KERNEL = "every kernel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One law on one kernel that a claim rests on."""

    claim: str
    kernel: Kernel
    law: Law


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A need with the record that bears on it, and why it does not count (`""`: it counts)."""

    need: Need
    record: Record | None
    reason: str


def needs(plan: Plan) -> Iterator[Need]:
    """Every law that the claims of a plan rest on, claim by claim."""
    for claim, kind, region in _claims(plan):
        for kernel in plan.kernels:
            for law in laws().values():
                if kind in law.backs and region in ("", kernel.region) and law.applies(kernel, plan):
                    yield Need(claim=claim, kernel=kernel, law=law)


def _claims(plan: Plan) -> Iterator[tuple[str, str, str]]:
    """(claim in words, kind, region it is restricted to)."""
    yield EVERY_KERNEL, "kernel", ""
    claims = plan.document["claims"]
    for claim in claims if isinstance(claims, list) else ():
        match claim:
            case {"topology": topology, "sizes": sizes}:
                yield f"topology {topology} {' '.join(map(str, sizes))}", topology, ""
            case {"equal_bits": region}:
                yield f"equal_bits {region}", "equal_bits", region
            case {"state": state}:
                yield f"state {state}", "state", ""
            case {"tolerance": cases}:
                yield f"tolerance {' '.join(cases)}", "tolerance", ""


def standings(plan: Plan, facts: Facts, tree: Tree, proved: Iterable[Record], *, here: bool) -> list[Standing]:
    """Every need of a package with what evidence there is; `here`: that counts for this machine."""
    records: dict[tuple[str, str, str], list[Record]] = {}
    for one in proved:
        records.setdefault((one.target, one.module, one.law), []).append(one)
    known_modules = {(target, module) for target, module, _ in records}
    digests = {
        kernel.path: evidence.kernel_digest(kernel, facts, tree)
        for kernel in plan.kernels
        if (kernel.target, kernel.module) in known_modules
    }
    tools = {target: machine.toolchain(target) for target in plan.targets} if here else {}
    judgements = []
    for need in needs(plan):
        kernel = need.kernel
        known = records.get((kernel.target, kernel.module, need.law.name), [])
        judged = [(_reason(r, digests[kernel.path], tools.get(kernel.target)), r) for r in known]
        reason, record = min(judged, key=lambda pair: pair[0] != "", default=("missing", None))
        judgements.append(Standing(need=need, record=record, reason=reason))
    return judgements


def _reason(record: Record, digest: str, tools: dict[str, str] | None) -> str:
    """Why a record does not count for a kernel, or `""`; with `tools`, on a machine that has these."""
    if record.kernel != digest:
        return "another kernel text or launch table"
    if tools is not None and record.arch != machine.architecture(record.target):
        return f"another architecture: {record.arch}"
    for name, version in (tools or {}).items():
        if record.toolchain.get(name, version) != version:
            return f"another toolchain: {name} {record.toolchain[name]}, here {version}"
    return "" if record.supports else f"refuted: {record.outcome}"


def shortfalls(plan: Plan, facts: Facts, tree: Tree, folder: Path) -> tuple[Drift, ...]:
    """What evidence lacks, one finding for each target, claim and reason; altered files first."""
    records = dict(evidence.read(folder))
    found = [
        Drift(code=ALTERED.id, subject=path.relative_to(folder).as_posix(), detail="is not the record its name says")
        for path, record in records.items()
        if record is None
    ]
    groups: dict[tuple[str, str, str], list[Standing]] = {}
    counts: dict[tuple[str, str], int] = {}
    for standing in standings(plan, facts, tree, filter(None, records.values()), here=True):
        place = standing.need.kernel.target, standing.need.claim
        counts[place] = counts.get(place, 0) + 1
        if standing.reason:
            groups.setdefault((*place, standing.reason), []).append(standing)
    for (target, claim, reason), lacking in groups.items():
        code = MISSING if reason == "missing" else REFUTED if reason.startswith("refuted") else STALE
        what = sorted({f"{s.need.kernel.region}/{s.need.law.name}" for s in lacking})
        some = ", ".join(what[:3]) + (f" and {len(what) - 3} more" if len(what) > 3 else "")
        detail = f"{len(lacking)} of {counts[target, claim]} laws: {reason} ({some})"
        found.append(Drift(code=code.id, subject=f"{claim} ({target})", detail=detail))
    return tuple(found)
