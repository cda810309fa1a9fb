"""The compiler on one screen: each pass by name, each a pure function of what the one before it returned.

path -read-> Document -conform, bind-> Contract -check-> Contract -lower-> Plan -render-> Tree -facts, dumps-> Package
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from isoexec_compiler import check, drift, identity, lock, output, schema, source, template_files, toolchain
from isoexec_compiler.bind import bind
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, has_errors, sort
from isoexec_compiler.identity import Facts
from isoexec_compiler.lower import lower
from isoexec_compiler.plan import Plan
from isoexec_compiler.render import Tree, render


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A compiled contract, not yet on disk: its files, the lock's facts, and the lock among the files."""

    plan: Plan
    facts: Facts
    tree: Tree


def load(data: bytes, name: str) -> tuple[Contract | None, tuple[Diagnostic, ...]]:
    """A contract's bytes to a checked contract, or None and every problem found, sorted by place."""
    document, problems = source.read(data, name)
    if document is None or has_errors(problems):
        return None, sort(problems)
    problems += schema.conform(document)
    if has_errors(problems):
        return None, sort(problems)
    contract = bind(document)
    problems += check.check(contract)
    return (None if has_errors(problems) else contract), sort(problems)


def build(contract: Contract) -> Package:
    """A checked contract to its package."""
    plan = lower(contract)
    templates = template_files.load()
    tree = render(plan, templates)
    facts = identity.facts(plan, tree, templates)
    return Package(plan=plan, facts=facts, tree={**tree, lock.NAME: lock.dumps(facts)})


def save(package: Package, folder: Path) -> bool:
    """Make `folder` hold the package; False when it already did and nothing was written."""
    disk = output.read(folder)
    sealed, _ = lock.read(disk.get(lock.NAME, b""), folder.as_posix())
    owned = {key.removeprefix("files.") for key in sealed if key.startswith("files.")}
    fresh = all(disk.get(path) == text.encode() for path, text in package.tree.items())
    if fresh and not (owned & disk.keys()) - package.tree.keys():
        return False
    output.write(folder, package.tree, frozenset(owned))
    return True


def verify(package: Package, folder: Path) -> tuple[tuple[Diagnostic, ...], tuple[drift.Drift, ...]]:
    """What is wrong with the lock itself, and how the contract, the lock and the files on disk differ."""
    disk = output.read(folder)
    if lock.NAME not in disk:
        return (), (drift.Drift(code=drift.NO_LOCK.id, subject=str(folder / lock.NAME), detail="missing"),)
    sealed, problems = lock.read(disk.pop(lock.NAME), (folder / lock.NAME).as_posix())
    return problems, () if problems else drift.compare(package.facts, sealed, disk)


def seal(package: Package, folder: Path) -> bool:
    """Compile every kernel for its target and make `ptx.lock` hold the digests; False when it already did."""
    text = lock.dumps(toolchain.ptx_facts(package.plan, package.facts, folder.parent))
    path = folder / toolchain.NAME
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    output.write_file(path, text)
    return True


def verify_deep(package: Package, folder: Path) -> tuple[tuple[Diagnostic, ...], tuple[drift.Drift, ...]]:
    """As `verify`, for `ptx.lock`: compiles every kernel with the installed toolchain and compares."""
    path = folder / toolchain.NAME
    if not path.is_file():
        return (), (drift.Drift(code=toolchain.NOT_SEALED.id, subject=path.as_posix(), detail="missing"),)
    sealed, problems = lock.read(path.read_bytes(), path.as_posix())
    if problems:
        return problems, ()
    return (), tuple(toolchain.drifts(sealed, package.facts, package.plan, folder.parent))
