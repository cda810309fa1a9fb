"""What `compile` and `verify` say of a package and of its drift."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from isoexec_compiler.drift import Drift
from isoexec_compiler.pipeline import Package
from isoexec_compiler.report import visible


def package(found: Package, folder: Path, *, changed: bool) -> str:
    """Kernels, adapters and the digests of each target, or `unchanged`."""
    plan, facts = found.plan, found.facts
    lines = [f"{plan.contract}: {'written to ' + folder.as_posix() if changed else 'unchanged'}"]
    lines += [f"  semantic          {facts['identity.semantic']}"]
    for target in plan.targets:
        kernels = [kernel for kernel in plan.kernels if kernel.target == target]
        regions = len({kernel.region for kernel in kernels})
        lines += [
            f"  {target}: {len(kernels)} kernels for {regions} regions",
            f"    numerical_policy  {facts[f'identity.{target}.numerical_policy']}",
            f"    deployment        {facts[f'identity.{target}.deployment']}",
        ]
    lines += [f"  adapters: {', '.join(f'{b.runtime} {b.version} ({b.side})' for b in plan.bindings)}"]
    return "\n".join(lines) + "\n"


def drift_text(drifts: tuple[Drift, ...], contract: str, folder: Path) -> str:
    """Every drift on a line, its rotated identities beneath; then what to do."""
    if not drifts:
        return ""
    lines = [f"{contract}: {len(drifts)} drift{'s' if len(drifts) > 1 else ''}"]
    for drift in drifts:
        lines += [f"  {drift.code}  {visible(drift.sentence)}"]
        lines += [f"        rotates {', '.join(drift.rotates)}"] if drift.rotates else []
    return "\n".join(lines) + f"\n  `isoexec explain CODE` says more about a code. Package: {folder.as_posix()}\n"


def drift_json(drifts: tuple[Drift, ...]) -> str:
    """The drifts as a JSON list of objects with the fields of `Drift`."""
    return json.dumps([asdict(drift) for drift in drifts], indent=1) + "\n"
