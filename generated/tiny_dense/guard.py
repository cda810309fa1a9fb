# SPDX-License-Identifier: Apache-2.0
"""Refuses to run when anything that can move a bit is not what the lock says.

Checked: the files beside this one, the versions of the runtime, the sizes and dtype of this run, the environment, and
the objects that are really bound. All problems are reported at once.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

import torch

from . import bound_objects, package
from .ledger import missing, uneven
from .regions import BOUND, bind

# Variables that select another compiler, kernel or precision behind the contract's back.
REFUSED = (
    "DISABLE_PTXAS_OPT",
    "NVIDIA_TF32_OVERRIDE",
    "PTXAS_OPTIONS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_F32_DEFAULT",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_INSTRUMENTATION_MODE",
    "TRITON_INTERPRET",
    "TRITON_KERNEL_OVERRIDE",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PTXAS_PATH",
    "VLLM_BATCH_INVARIANT",
)


class GuardError(RuntimeError):
    """The contract cannot be kept; `problems` holds one sentence for each reason.

    A framework that raises it again with its message for an argument gets one problem, which is that message.
    """

    def __init__(self, problems: tuple[str, ...] | str) -> None:
        problems = (problems,) if isinstance(problems, str) else problems
        super().__init__(f"contract {package.NAME} is not kept:\n" + "\n".join(f"  - {p}" for p in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an adapter sees of its runtime: the size of every kind of parallelism, the dtype, and its own complaints."""

    side: str
    distribution: str
    sizes: Mapping[str, object]
    dtype: torch.dtype
    problems: tuple[str, ...] = ()


def file_problems(root: Path, lock: Mapping[str, object]) -> list[str]:
    """Sentences on files of the package that are missing, edited, or not in the lock."""
    problems = []
    listed = {key.removeprefix("files."): digest for key, digest in lock.items() if key.startswith("files.")}
    for path, digest in sorted(listed.items()):
        file = root / path
        if not file.is_file():
            problems.append(f"{path} is missing")
        elif f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}" != digest:
            problems.append(f"{path} is not the file that the lock seals")
    found = {file.relative_to(root).as_posix() for file in root.rglob("*.py")}
    return problems + [f"{path} is not in the lock" for path in sorted(found - listed.keys())]


def environment_problems(environment: Mapping[str, str]) -> list[str]:
    """Sentences on variables that are set and could move a bit, whatever their value."""
    return [f"the environment sets {name}, which can move bits" for name in REFUSED if environment.get(name, "") != ""]


def version_problems(side: str, distribution: str, target: str) -> list[str]:
    """Sentences on the runtime's installed version, which must be the lock's."""
    due = package.load().lock[f"deployment.{target}.runtimes.{side}.version"]
    try:
        installed = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return [f"{distribution} {due} is due, and is not installed"]
    return [] if installed == due else [f"{distribution} {installed} is installed, the contract is bound to {due}"]


def claim_problems(observed: Observed) -> list[str]:
    """Sentences on sizes outside the topology claims and on a dtype that is not the contract's."""
    contract = package.load()
    problems = []
    for kind, size in observed.sizes.items():
        claimed = contract.sizes(kind)
        if size not in claimed:
            problems.append(f"{kind} is {size}, the contract claims {' '.join(str(s) for s in claimed)}")
    if observed.dtype != contract.dtype:
        problems.append(f"the model runs in {observed.dtype}, the contract's dtype is {contract.dtype}")
    return problems


def require_coverage(bound: Collection[str]) -> None:
    """Refuse to bind a contract with regions that the adapter does not know. Raises GuardError."""
    unknown = sorted(package.load().contract["regions"].keys() - set(bound))
    if unknown:
        raise GuardError((f"this adapter binds no region {', '.join(unknown)}",))


def object_problems() -> list[str]:
    """Sentences on functions in memory that are not the ones in this package's files."""
    return [p for module in _modules().values() for p in bound_objects.module_problems(module)] + (
        bound_objects.table_problems(_kernels())
    )


def _modules() -> dict[str, ModuleType]:
    prefix = f"{package.NAME}."
    return {name: module for name, module in sorted(sys.modules.items()) if name.startswith(prefix) and module.__file__}


def _kernels() -> dict[str, ModuleType]:
    contract = package.load()
    case = contract.cases(BOUND.side)[0]
    return {region: contract.kernel(BOUND.target, region, case) for region in contract.contract["regions"]}


def install(observed: Observed) -> None:
    """Bind every region for one side, check all there is to check, and record INSTALL. Raises GuardError.

    Idempotent; a second side in one process is refused, since a process has one ledger.
    """
    if BOUND.side not in ("", observed.side):
        raise GuardError((f"this process is bound as the {BOUND.side} already",))
    target = package.target()
    bind(observed.side, target)
    problems = [
        *file_problems(package.ROOT, package.load().lock),
        *environment_problems(os.environ),
        *version_problems(observed.side, observed.distribution, target),
        *claim_problems(observed),
        *observed.problems,
        *object_problems(),
    ]
    BOUND.ledger.record("INSTALL", problems=problems)
    if problems:
        raise GuardError(tuple(problems))


def first_forward(case: str, *, counted: bool = True) -> None:
    """After the first forward of `case`: every region ran as often as the model holds it, through the objects that the
    files define. Raises GuardError. `counted` is False where captured graphs replay what was counted once."""
    contract = package.load()
    runs = BOUND.ledger.runs
    if counted:
        problems = uneven(runs, contract.multiplicity(), case)
    else:
        ran = {region for region, _ in runs}
        problems = [f"{region} never ran" for region in contract.multiplicity() if region not in ran]
    problems += object_problems()
    BOUND.ledger.record("FIRST_FORWARD", contract.cases(BOUND.side).index(case), problems)
    if problems:
        raise GuardError(tuple(problems))


def outstanding(*, syncs: int, steps: int) -> list[str]:
    """Sentences on what this process owes the contract and did not discharge: INSTALL, the first forward of each case
    that has run, every weight sync and every step so far. Waivers of the contract excuse until they expire."""
    contract = package.load()
    ran = {case for _, case in BOUND.ledger.runs}
    due = [
        ("INSTALL", 0),
        *(("FIRST_FORWARD", i) for i, case in enumerate(contract.cases(BOUND.side)) if case in ran),
        *(("WEIGHT_SYNC", version) for version in range(1, syncs + 1)),
        *(("STEP", version) for version in range(1, steps + 1)),
    ]
    return missing(BOUND.ledger, due, contract.contract["waivers"])


def step(version: int) -> None:
    """Once a step of the loop: the environment and the bound objects are still the ones checked. Raises GuardError."""
    problems = environment_problems(os.environ) + bound_objects.table_problems(_kernels())
    BOUND.ledger.record("STEP", version, problems)
    if problems:
        raise GuardError(tuple(problems))
