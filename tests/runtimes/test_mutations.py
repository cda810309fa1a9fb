"""A test of the tests: one small wrong in the trainer alone, and the comparison must see it.

In bf16 a rounding after each region hides some wrong orders from the log-probabilities and from the rows; in fp32
nothing is hidden. A wrong is caught when either model shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.runtimes.comparison import Cell, compare
from tests.runtimes.conftest import Workplace
from tests.runtimes.mutations import MUTATIONS, SAME_TREE

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def mutated(
    bf16: Workplace, fp32: Workplace, sampled: dict[str, Any], sampled_fp32: dict[str, Any]
) -> dict[str, tuple[Cell, Cell]]:
    """For each mutation what bf16 and what fp32 show."""
    wrongs = ["", *MUTATIONS, *SAME_TREE]
    found: dict[str, list[Cell]] = {}
    for place, run, engine in ((bf16, "together", sampled), (fp32, "fp32_together", sampled_fp32)):
        ranks = place.trainer("mutated", run, batchings=["padded"], mutations=wrongs)
        for wrong in wrongs:
            cell = compare(engine[run], f"{run}|padded|{wrong}", ranks, (run, f"({wrong})"))
            found.setdefault(wrong, []).append(cell)
    return {wrong: (first, second) for wrong, (first, second) in found.items()}


@pytest.mark.parametrize("wrong", ["", *SAME_TREE])
def test_nothing_is_seen_where_nothing_is_wrong(wrong: str, mutated: dict[str, tuple[Cell, Cell]]) -> None:
    """No mutation, or one that writes the same tree in another way."""
    assert all(cell.clean for cell in mutated[wrong])


@pytest.mark.parametrize("wrong", MUTATIONS)
def test_caught(
    wrong: str, mutated: dict[str, tuple[Cell, Cell]], record_property: Callable[[str, object], None]
) -> None:
    for cell in mutated[wrong]:
        record_property("cell", cell.line())
    assert any(not cell.clean for cell in mutated[wrong]), f"{wrong} moved neither a log-probability nor a row"
