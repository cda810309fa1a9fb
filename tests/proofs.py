"""What the tests of proofs share: tiny_dense for the cpu target alone, compiled, its kernels as subjects of laws."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

from isoexec_compiler import pipeline
from isoexec_compiler.pipeline import Package
from isoexec_compiler.plan import Kernel
from isoexec_compiler.subject import Subject, imported

CONTRACT = Path(__file__).parent.parent / "contracts/tiny_dense.yaml"


def cpu_only(text: str) -> str:
    """The contract without its GPU target."""
    text = text.replace("targets: [sm90, cpu]", "targets: [cpu]")
    return re.sub(r"    launch:\n(?: {6}.*\n)+", "", text)


def compiled(text: str, folder: Path) -> tuple[Package, Path]:
    """The package of a contract, written below `folder`, and where it lies."""
    contract, problems = pipeline.load(text.encode(), "tiny.yaml")
    assert contract is not None, problems
    package = pipeline.build(contract)
    place = folder / package.plan.contract
    pipeline.save(package, place)
    return package, place


def kernel(package: Package, module: str) -> Kernel:
    """The cpu kernel of this name."""
    return next(k for k in package.plan.kernels if (k.target, k.module) == ("cpu", module))


def subject(package: Package, place: Path, module: str, **others: object) -> Subject:
    """A cpu kernel of a compiled package as laws see it; `others` replace its fields."""
    about = kernel(package, module)
    (found,) = imported((about.dotted(place.name),), place.parent)
    built = Subject(
        contract=package.plan.contract,
        kernel=about,
        root=place.parent,
        modules={"cpu": found},
        seed=1,
        deadline=time.monotonic() + 20,
        quick=True,
    )
    return replace(built, **others)  # type: ignore[arg-type]


def faulty(module: ModuleType, **functions: object) -> ModuleType:
    """A module with some functions replaced by wrong ones."""
    return SimpleNamespace(**{**vars(module), **functions})  # type: ignore[return-value]
