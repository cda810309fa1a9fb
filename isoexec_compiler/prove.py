"""Examine the laws of a contract's own generated kernels on the device, and write what was found as evidence."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType

from isoexec_compiler import evidence, machine, pipeline
from isoexec_compiler.claims import Need, needs, standings
from isoexec_compiler.evidence import Record
from isoexec_compiler.law import Finding, laws
from isoexec_compiler.pipeline import Package
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject, imported

PROCESSES = 12
# Laws that compile most come first, so that no process waits for the last one alone.
ORDER = ("attention_resume", "rows_alone", "free_launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One law on one kernel of the contract at `path`, whose package lies in `folder`.

    `seconds` is when it stops adding to its domain; it does not start after `until`, as `time.time` counts.
    """

    path: Path
    folder: Path
    module: str
    target: str
    law: str
    seed: int
    seconds: float
    until: float
    quick: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a task: a record, or the error that stopped it; and its wall time."""

    task: Task
    record: Record | None
    error: str
    seconds: float


def tasks(
    package: Package,
    path: Path,
    folder: Path,
    target: str,
    *,
    seed: int,
    seconds: float,
    quick: bool = False,
    only: tuple[str, ...] = (),
    missing: bool = False,
) -> list[Task]:
    """The tasks of one target; none starts after `seconds`. `only` names laws or regions; `missing` leaves out what
    the evidence in `folder` shows of the present kernels on this machine."""
    chosen = {
        (need.law.name, need.kernel.module)
        for need in (_unproved(package, folder) if missing else needs(package.plan))
        if need.kernel.target == target and (not only or {need.law.name, need.kernel.region} & set(only))
    }
    share = seconds / (len(chosen) or 1) if processes(target) == 1 else seconds / 4
    heavy = {name: place for place, name in enumerate(ORDER)}
    ordered = sorted(chosen, key=lambda pair: (heavy.get(pair[0], len(ORDER)), pair))
    until = time.time() + seconds
    return [
        Task(
            path=path,
            folder=folder,
            module=module,
            target=target,
            law=law,
            seed=seed,
            seconds=share,
            until=until,
            quick=quick,
        )
        for law, module in ordered
    ]


def _unproved(package: Package, folder: Path) -> Iterator[Need]:
    records = (record for _, record in evidence.read(folder) if record)
    found = standings(package.plan, package.facts, package.tree, records, here=True)
    return (standing.need for standing in found if standing.reason)


def processes(target: str) -> int:
    """How many processes share the work: kernels compile on the CPU while others run. The cpu target has one."""
    return 1 if target == "cpu" else max(1, min(PROCESSES, os.cpu_count() or 1))


def prove(work: list[Task]) -> Iterator[Result]:
    """The result of every task, as they come."""
    if not work:
        return
    count = processes(work[0].target)
    if count == 1:
        yield from map(run, work)
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        yield from (done.result() for done in as_completed([pool.submit(run, task) for task in work]))


def run(task: Task) -> Result:
    """Examine one law; an exception of the kernel is a result, not a crash of the whole run."""
    if time.time() > task.until:
        return Result(task=task, record=None, error="not examined: the time is used up", seconds=0.0)
    begin = time.monotonic()
    record, error = None, ""
    try:
        record = _examine(task)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"[:400]
    finally:
        _release(task.target)
    return Result(task=task, record=record, error=error, seconds=time.monotonic() - begin)


def _examine(task: Task) -> Record:
    import torch

    package = _package(task.path)
    kernel = next(k for k in package.plan.kernels if (k.target, k.module) == (task.target, task.module))
    subject = Subject(
        contract=package.plan.contract,
        kernel=kernel,
        root=task.folder.parent,
        modules=_modules(package.plan, kernel, task.folder),
        seed=task.seed,
        deadline=time.monotonic() + task.seconds,
        quick=task.quick,
    )
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // processes(task.target)))
    with torch.no_grad():
        finding: Finding = laws()[task.law].examine(subject)
    return evidence.record(
        kernel,
        task.law,
        finding,
        contract=package.plan.contract,
        seed=task.seed,
        quick=task.quick,
        arch=machine.present(task.target),
        device=machine.device(task.target),
        toolchain=machine.toolchain(task.target),
        kernel=evidence.kernel_digest(kernel, package.facts, package.tree),
    )


@cache
def _package(path: Path) -> Package:
    contract, _ = pipeline.load(path.read_bytes(), path.as_posix())
    if contract is None:
        raise ValueError(f"{path} is no sound contract")
    return pipeline.build(contract)


def _modules(plan: Plan, kernel: Kernel, folder: Path) -> dict[str, ModuleType]:
    """The kernel's module and those of the same region and case for the contract's other targets that can run here."""
    others = (k for k in plan.kernels if k.region == kernel.region and kernel.cases[0] in k.cases)
    here = [kernel, *(k for k in others if k.target == "cpu" != kernel.target)]
    modules = imported(tuple(k.dotted(folder.name) for k in here), folder.parent)
    return {k.target: module for k, module in zip(here, modules, strict=True)}


def _release(target: str) -> None:
    """Give memory that this process keeps for later back to the device: other processes share it."""
    if target != "cpu":
        import torch

        torch.cuda.empty_cache()
