"""Laws run on every place this process offers; an interpreting process repairs the interpreter first."""

from __future__ import annotations

import pytest
import torch

from tests.support.targets import INTERPRETING, PLACES

if INTERPRETING:
    from tests.support.interpreter import repair

    repair()


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    """Where the kernel runs: "cpu", "sm90" (a Hopper GPU) or "interpreter" (the sm90 text, interpreted)."""
    return str(request.param)


@pytest.fixture(params=[place for place in PLACES if place != "cpu"])
def triton_place(request: pytest.FixtureRequest) -> str:
    """A place that runs Triton text; none in a process with neither a Hopper GPU nor the interpreter."""
    return str(request.param)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)
