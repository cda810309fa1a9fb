"""The laws once more, on Triton text in the interpreter, which needs a process of its own for each file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.targets import INTERPRETING

HERE = Path(__file__).parent
LAWS = sorted(path.name for path in HERE.glob("test_*.py") if path != Path(__file__))


@pytest.mark.interpreter
@pytest.mark.skipif(INTERPRETING, reason="this process is the interpreter's")
@pytest.mark.parametrize("name", LAWS)
def test_laws_hold_for_interpreted_triton_text(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-x", "--tb=short", "-p", "no:cacheprovider", str(HERE / name)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-4000:]
