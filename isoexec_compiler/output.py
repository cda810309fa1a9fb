"""Trees on disk: read a generated package, and replace it by another in one step.

A package is written whole into a sibling folder, then exchanged with the old one by one system call, so that a reader,
a crash or a second writer sees the old tree or the new one, never a mixture.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

EVIDENCE = "evidence"
KEPT = frozenset({EVIDENCE, "ptx.lock"})
IGNORED = frozenset({"__pycache__"})


def read(folder: Path) -> dict[str, bytes]:
    """Every file of a generated package by posix path below it; {} when absent.

    What other commands keep there (evidence, `ptx.lock`) and caches are left out.
    """
    return {path: Path(folder, path).read_bytes() for path in sorted(_files(folder, ""))}


def _files(folder: Path | str, below: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        return
    for entry in os.scandir(folder):
        path = f"{below}{entry.name}"
        if path in KEPT or entry.name in IGNORED:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{path}/")
        elif entry.is_file():
            yield path


def write(folder: Path, tree: Mapping[str, str], owned: frozenset[str]) -> None:
    """Make `folder` hold `tree`, atomically. Files there that are neither in `tree` nor `owned` are carried over.

    `owned` are the paths an earlier compile wrote. Raises OSError, and changes nothing, when it cannot write.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.{os.getpid()}.", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        for path, text in tree.items():
            target = fresh / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        _carry_over(folder, fresh, tree.keys() | owned)
        _flush(fresh)
        if folder.exists():
            _exchange(fresh, folder)
        else:
            os.rename(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_file(path: Path, text: str) -> None:
    """Make one file hold `text`, atomically. Raises OSError with nothing changed when it cannot be written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(text.encode())
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _remove_leftovers(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    for path in folder.parent.glob(f".{folder.name}.*.*"):
        owner = path.name.removeprefix(f".{folder.name}.").split(".")[0]
        if owner.isdigit() and not _alive(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _carry_over(old: Path, new: Path, written: frozenset[str] | set[str]) -> None:
    for path in sorted(old.rglob("*")) if old.is_dir() else ():
        relative = path.relative_to(old)
        if path.is_file() and relative.as_posix() not in written and not IGNORED.intersection(relative.parts):
            (new / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, new / relative)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _exchange(a: Path, b: Path) -> None:
    """Swap two folders in one step where the system can; elsewhere by two renames."""
    names = os.fsencode(a), os.fsencode(b)
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        at_cwd, exchange = -100, 2
        if libc.renameat2(at_cwd, names[0], at_cwd, names[1], exchange) == 0:
            return
    elif sys.platform == "darwin":
        swap = 2
        if libc.renamex_np(names[0], names[1], swap) == 0:
            return
    aside = a.with_name(f"{a.name}.old")
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)
