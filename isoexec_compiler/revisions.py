"""Two locks compared: from files, or from git revisions."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from isoexec_compiler import drift, lock
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.drift import Drift
from isoexec_compiler.identity import Facts
from isoexec_compiler.registry import Value

CHANGED = "fact"


def lock_facts(name: str) -> tuple[dict[str, Value], tuple[Diagnostic, ...]]:
    """The facts of the lock called `name`: a path, or `REVISION:path`. Raises OSError when there is none."""
    return lock.read(Path(name).read_bytes() if Path(name).exists() else _from_git(name), name)


def _from_git(name: str) -> bytes:
    if not re.fullmatch(r"[^-:][^:]*:.+", name):
        raise FileNotFoundError(2, "no such file", name)
    shown = subprocess.run(["git", "show", "--end-of-options", name], capture_output=True, check=False)
    if shown.returncode:
        raise FileNotFoundError(2, shown.stderr.decode(errors="replace").strip() or "git cannot show it", name)
    return shown.stdout


def diff(before: Facts, after: Facts) -> tuple[Drift, ...]:
    """Every fact that differs, with the identities it rotates; digests that merely follow are left out."""
    cases = drift.module_cases(before) | drift.module_cases(after)
    return tuple(
        Drift(
            code=CHANGED,
            subject=drift.describe(fact, cases),
            detail=f"{drift.show(old)} -> {drift.show(new)}",
            rotates=drift.rotated(fact),
        )
        for fact, old, new in drift.changes(before, after)
        if not fact.startswith(("identity.", "files."))
    )
