# SPDX-License-Identifier: Apache-2.0
"""What this process did to keep the contract: how often each region ran, and which obligations were discharged.

Obligations: INSTALL (once, before the first forward), FIRST_FORWARD (every region of a case ran, as often as the model
holds it), WEIGHT_SYNC (every version of the weights) and STEP (every step). What is not recorded did not happen.
"""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OBLIGATIONS = ("INSTALL", "FIRST_FORWARD", "WEIGHT_SYNC", "STEP")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One discharged obligation; `version` counts weight syncs or steps, `problems` is empty when all was well."""

    obligation: str
    version: int
    problems: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Ledger:
    """`case` is the case of the forward that is running; `runs[region, case]` counts executions of a region's operator,
    inside the operator, where a traced counter would lie."""

    case: str = ""
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)

    def ran(self, region: str) -> None:
        self.runs[region, self.case] += 1

    def record(self, obligation: str, version: int = 0, problems: Iterable[str] = ()) -> Entry:
        """Write an obligation down as discharged (or as failed, with problems). Raises ValueError."""
        if obligation not in OBLIGATIONS:
            raise ValueError(f"{obligation!r} is no obligation; they are {', '.join(OBLIGATIONS)}")
        entry = Entry(obligation=obligation, version=version, problems=tuple(problems))
        self.entries.append(entry)
        return entry

    def holds(self, obligation: str, version: int = 0) -> bool:
        """Whether the last record of this obligation and version is there and free of problems."""
        last = [e for e in self.entries if e.obligation == obligation and e.version == version]
        return bool(last) and not last[-1].problems


def uneven(runs: Mapping[tuple[str, str], int], multiplicity: Mapping[str, int], case: str) -> list[str]:
    """Sentences on regions that ran less or more often than the model holds them, for every forward of `case`.

    The embedding is the clock: one forward is one run of it. The head and the log-softmax run on demand, for samples
    and for prompts, and must keep each other's pace.
    """
    forwards, heads = runs.get(("embed", case), 0), runs.get(("head", case), 0)
    if not forwards or not heads:
        return [f"{case}: {forwards} embeddings and {heads} heads ran"]
    due = {region: forwards * times for region, times in multiplicity.items()} | {"head": heads, "logprobs": heads}
    return [
        f"{case}: {region} ran {runs.get((region, case), 0)} times, {times} are due"
        for region, times in due.items()
        if runs.get((region, case), 0) != times
    ]


def missing(ledger: Ledger, due: Iterable[tuple[str, int]], waivers: Sequence[Mapping[str, str]] = ()) -> list[str]:
    """Sentences on obligations `(name, version)` that are due and not discharged. A waiver of the contract excuses an
    obligation until the day it expires."""
    today = datetime.date.today().isoformat()
    waived = {w["obligation"] for w in waivers if w["expires"] > today}
    problems = []
    for obligation, version in due:
        if obligation not in waived and not ledger.holds(obligation, version):
            failed = [e for e in ledger.entries if e.obligation == obligation and e.version == version]
            reason = "; ".join(failed[-1].problems) if failed else "it was never recorded"
            problems.append(f"{obligation} (version {version}) is not discharged: {reason}")
    return problems


def report(ledger: Ledger, *, side: str, rank: int, outstanding: Sequence[str] = ()) -> dict[str, Any]:
    """This process's ledger as JSON-ready data, sorted; `outstanding` are the sentences of `missing`."""
    return {
        "side": side,
        "rank": rank,
        "runs": {f"{case}/{region}": n for (region, case), n in sorted(ledger.runs.items())},
        "entries": [
            {"obligation": e.obligation, "version": e.version, "problems": list(e.problems)} for e in ledger.entries
        ],
        "outstanding": list(outstanding),
    }


def merge(reports: Iterable[Mapping[str, Any]], *, ranks: int) -> dict[str, Any]:
    """One report of all ranks, with a problem for every rank that sent none and for every rank whose runs differ.

    Raises ValueError when two reports claim one rank.
    """
    by_rank: dict[int, Mapping[str, Any]] = {}
    for one in reports:
        if one["rank"] in by_rank:
            raise ValueError(f"two reports claim to come from rank {one['rank']}")
        by_rank[one["rank"]] = one
    problems = [f"rank {rank} sent no report" for rank in range(ranks) if rank not in by_rank]
    first = by_rank.get(min(by_rank, default=0))
    problems += [
        f"rank {rank} ran other regions than rank {first['rank']}"
        for rank, one in sorted(by_rank.items())
        if first is not None and one["runs"] != first["runs"]
    ]
    for rank, one in sorted(by_rank.items()):
        problems += [f"rank {rank}: {e['obligation']}: {p}" for e in one["entries"] for p in e["problems"]]
        problems += [f"rank {rank}: {p}" for p in one["outstanding"]]
    return {"ranks": [by_rank[rank] for rank in sorted(by_rank)], "problems": problems}


def write(path: str | os.PathLike[str], merged: Mapping[str, Any]) -> None:
    """Write a merged report so that a reader sees either the old file or the whole new one."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False, encoding="utf-8") as file:
        file.write(json.dumps(merged, indent=1, sort_keys=True) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
