"""A few layers of a real model: its contract with fewer layers, every size as it is, compiled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from isoexec_compiler import pipeline


def compiled(source: Path, repeat: int, generated: Path) -> tuple[str, dict[str, Any]]:
    """Compile a contract with its pattern of layers `repeat` times into the folder `generated`.

    Returns the package's name and its contract as data.
    """
    text, found = re.subn(r"repeat: \d+", f"repeat: {repeat}", source.read_text())
    contract, problems = pipeline.load(text.encode(), source.name)
    if contract is None or found != 1:
        raise ValueError(f"{source} cannot be cut: {problems or 'no pattern of layers'}")
    pipeline.save(pipeline.build(contract), generated / contract.name)
    return contract.name, json.loads((generated / contract.name / "contract.json").read_text())
