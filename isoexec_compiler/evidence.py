"""Evidence: what `prove` found, as records that outlive the run and count only for what they were made of.

A record is `evidence/<target>/<SHA-256 of its bytes>.json` in a package. It counts for a kernel while the kernel's
text, its support modules, its launch tables, the architecture and the toolchain are those of the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from isoexec_compiler import output
from isoexec_compiler.identity import Facts, digest
from isoexec_compiler.plan import Kernel
from isoexec_compiler.render import Tree
from isoexec_compiler.template_files import imports

if TYPE_CHECKING:
    from isoexec_compiler.law import Finding

FOLDER = output.EVIDENCE
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One law on one kernel. `compared`, `differing` and the control count elements; `kernel` is `kernel_digest`.

    `outcome` is `bitwise` only for 0 differing bits among more than 0, with a control that was seen to differ.
    """

    version: int
    contract: str
    target: str
    region: str
    module: str
    cases: tuple[str, ...]
    law: str
    outcome: str
    compared: int
    differing: int
    control: str
    control_differing: int
    hazards: Mapping[str, int]
    refused: Mapping[str, str]
    error: float | None
    bound: float | None
    domain: Mapping[str, object]
    seed: int
    quick: bool
    arch: str
    device: str
    toolchain: Mapping[str, str]
    kernel: str

    @property
    def sound(self) -> bool:
        """Whether the outcome is the one that the counts of this record imply."""
        from isoexec_compiler.law import Finding

        finding = Finding(
            compared=self.compared,
            differing=self.differing,
            control_differing=self.control_differing,
            error=self.error,
            bound=self.bound,
        )
        finding.fired.update(self.hazards)
        return finding.outcome == self.outcome

    @property
    def supports(self) -> bool:
        """Whether the law was seen to hold."""
        return self.sound and self.outcome in ("bitwise", "within bound")


def record(about: Kernel, law: str, finding: Finding, **others: object) -> Record:
    """The record of a finding on the kernel `about`; `others` are the fields that concern the run."""
    return Record(
        version=VERSION,
        target=about.target,
        region=about.region,
        module=about.module,
        cases=about.cases,
        law=law,
        outcome=finding.outcome,
        compared=finding.compared,
        differing=finding.differing,
        control=finding.control,
        control_differing=finding.control_differing,
        hazards=dict(finding.fired),
        refused=finding.refused,
        error=finding.error,
        bound=finding.bound,
        domain=finding.domain,
        **others,  # type: ignore[arg-type]
    )


def kernel_digest(kernel: Kernel, facts: Facts, tree: Tree) -> str:
    """What of a package a record is about: the kernel's source, the support modules it imports, its launch tables."""
    policy = f"numerical_policy.{kernel.target}."
    launch = f"deployment.{kernel.target}.kernels.{kernel.module}."
    stem = kernel.path.removesuffix(".py")
    used, pending = set(), {path for path in tree if path == kernel.path or path.startswith(f"{stem}_")}
    while pending:
        used |= pending
        pending = {f"{name}.py" for path in pending for name in imports(tree[path])} & tree.keys() - used
    about = {f"{policy}support.{path.removesuffix('.py')}.source" for path in used} & facts.keys()
    about |= {key for key in facts if key.startswith((f"{policy}kernels.{kernel.module}.", launch))}
    return digest("kernel", {key: facts[key] for key in about})


def text(found: Record) -> str:
    """A record as it lies on disk."""
    return json.dumps(asdict(found), indent=1, sort_keys=True) + "\n"


def write(folder: Path, found: Record) -> Path:
    """Put a record into a package, in place of earlier ones of the same kernel, law and architecture."""
    content = text(found)
    place = folder / FOLDER / found.target
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{hashlib.sha256(content.encode()).hexdigest()}.json"
    for old, other in read(folder):
        same = other and (other.target, other.module, other.law, other.arch) == (
            found.target,
            found.module,
            found.law,
            found.arch,
        )
        if same and old != path:
            old.unlink()
    output.write_file(path, content)
    return path


def read(folder: Path) -> Iterator[tuple[Path, Record | None]]:
    """Every record of a package by path; None for a file that is not the record its name says."""
    for path in sorted((folder / FOLDER).glob("*/*.json")):
        yield path, _record(path)


def _record(path: Path) -> Record | None:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != path.stem:
        return None
    try:
        values = json.loads(data)
        if values.keys() != {field.name for field in fields(Record)} or values["version"] != VERSION:
            return None
        found = Record(**{**values, "cases": tuple(values["cases"])})
        return found if found.sound else None
    except (ValueError, TypeError, AttributeError):
        return None
