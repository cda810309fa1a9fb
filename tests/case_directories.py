"""A behaviour of the front end is a directory `cases/<code>_<slug>/`: a contract, and the report it must give.

The contract is `contract.yaml`, `contract.json`, or, for bytes that no editor would keep, `contract.py` with
`DATA = b"..."`, which is read as `contract.yaml`. `expected.txt` is the text report, without color, as written by
`python -m tests.update_cases`.
"""

from __future__ import annotations

import runpy
from pathlib import Path

from isoexec_compiler import pipeline
from isoexec_compiler.report import render_text
from isoexec_compiler.source import readable

ROOT = Path(__file__).parent / "cases"
EXPECTED = "expected.txt"


def case_directories() -> list[Path]:
    """Every case, in order of name."""
    return sorted(path for path in ROOT.iterdir() if path.is_dir())


def contract_of(case: Path) -> tuple[bytes, str]:
    """The bytes of a case's contract and the name under which they are read."""
    (path,) = case.glob("contract.*")
    if path.suffix == ".py":
        return runpy.run_path(str(path))["DATA"], "contract.yaml"
    return path.read_bytes(), path.name


def report_of(case: Path) -> str:
    """The text report on a case's contract."""
    data, name = contract_of(case)
    _, problems = pipeline.load(data, name)
    return render_text(problems, {name: readable(data)})
