"""Peer memory moves bytes and no bit: its kernels, interpreted, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.interpreter
@pytest.mark.parametrize("world", [2, 3, 8])
def test_bits_of_one_rank(world: int) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "tests.support.peer_ranks", str(world)],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-4000:]
