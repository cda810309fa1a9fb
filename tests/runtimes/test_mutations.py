# SPDX-License-Identifier: Apache-2.0
"""A test of the tests: one small wrong in the trainer alone, and the comparison must see it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtimes.comparison import MATRIX, compare
from tests.runtimes.conftest import Workplace
from tests.runtimes.mutations import MUTATIONS

pytestmark = pytest.mark.runtime


@pytest.fixture(scope="module")
def mutated(bf16: Workplace, sampled: dict[str, Any]) -> dict[str, Any]:
    return bf16.trainer("mutated", "together", batchings=["padded"], mutations=["", *MUTATIONS])[0]


def test_nothing_is_seen_where_nothing_is_wrong(sampled: dict[str, Any], mutated: dict[str, Any]) -> None:
    assert compare(sampled["together"], "together|padded|", [mutated], ("", "")).clean


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_caught(mutation: str, sampled: dict[str, Any], mutated: dict[str, Any]) -> None:
    cell = compare(sampled["together"], f"together|padded|{mutation}", [mutated], ("together", f"({mutation})"))
    MATRIX.append(cell)
    assert not cell.clean, f"{mutation} moved neither a log-probability nor a row digest"
