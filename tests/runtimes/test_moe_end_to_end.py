"""Experts end to end: a compiled engine, a trainer of four ranks on every layout (tensor, sequence, expert parallel).

An engine's batches, chunks and cached prefixes send other tokens to an expert at the same time than the trainer does,
and the ranks of the trainer that share experts hold other numbers of tokens; no bit may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtimes.comparison import compare
from tests.runtimes.conftest import SMALL, Workplace
from tests.runtimes.processes import free_port, run_script

pytestmark = pytest.mark.runtime
RANKS = 4
LAYOUTS = [
    (tp, sp, ep, False) for tp in (1, 2, 4) for sp in ((False, True) if tp > 1 else (False,)) for ep in (1, 2, 4)
]
LAYOUTS += [(2, sp, 2, True) for sp in (False, True)]
# Of eight ranks, after one rank's own. The model has four heads: eight ranks cannot share them.
LAYOUTS_8 = [(1, False, 1, False), (1, False, 8, False), (4, True, 8, False), (2, False, 4, True)]


def named(layouts: list[tuple[int, bool, int, bool]]) -> list[str]:
    return [f"{tp} {'on' if sp else 'off'} {ep}{' by width' if by_width else ''}" for tp, sp, ep, by_width in layouts]


NAMES, NAMES_8 = named(LAYOUTS), named(LAYOUTS_8)
# Numbers of tokens a * tp + b.
COUNTS = {"0": (0, 0), "1": (0, 1), "3": (0, 3), "tp-1": (1, -1), "tp+1": (1, 1), "2tp+1": (2, 1), "509": (0, 509)}
ENGINE = {**SMALL, "enable_prefix_caching": True, "max_num_batched_tokens": 48, "max_num_seqs": 5}
RUN = {"name": "experts", "engine": {**ENGINE, "enforce_eager": False}, "repeat": 2, "uneven": True, "max_tokens": 12}
# Eager, and every rank holds a share of every expert's width.
RUN_TP2 = {**RUN, "name": "experts_tp2", "engine": {**ENGINE, "tensor_parallel_size": 2}, "repeat": 1}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    made = Workplace(tmp_path_factory.mktemp("experts"), "bf16", "tiny_moe")
    made.prompts = made.prompts[:9]
    return made


@pytest.fixture(scope="module")
def engine(place: Workplace) -> dict[str, Any]:
    return place.engine("engine", RUN)["experts"]


@pytest.fixture(scope="module")
def engine_tp2(place: Workplace) -> dict[str, Any]:
    return place.engine("engine_tp2", RUN_TP2)["experts_tp2"]


@pytest.fixture(scope="module")
def trainer(place: Workplace, engine: dict[str, Any], engine_tp2: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of each rank."""
    return scored(place, "trainer", RANKS, LAYOUTS, RUN["name"], RUN_TP2["name"], counts=list(COUNTS.values()))


@pytest.fixture(scope="module")
def trainer_8(place: Workplace, engine: dict[str, Any]) -> list[dict[str, Any]]:
    return scored(place, "trainer_8", 8, LAYOUTS_8, RUN["name"])


def scored(
    place: Workplace, name: str, ranks: int, layouts: list[Any], *runs: str, **more: Any
) -> list[dict[str, Any]]:
    job = place.job(name, runs=list(runs), layouts=layouts, **more)
    run_script("moe_process.py", {**job, "port": free_port(), "world": ranks}, ranks)
    return [torch.load(place.out / f"{name}.{rank}.pt") for rank in range(ranks)]


def check(engine: dict[str, Any], layout: str, ranks: list[dict[str, Any]]) -> str:
    """No log-probability and no row of a region differs."""
    cell = compare(engine, layout, ranks, ("experts", f"tp, sp, ep {layout}"))
    assert cell.of_logprobs > 300
    assert {"router", "expert_gate_up", "expert_act", "expert_down", "expert_combine"} <= cell.missing.keys()
    assert cell.clean, cell.line()
    return cell.line()


@pytest.mark.parametrize("layout", NAMES)
def test_four_ranks(
    layout: str, engine: dict[str, Any], trainer: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    record_property("cell", check(engine, layout, trainer))


@pytest.mark.parametrize("count", COUNTS)
def test_layer(count: str, trainer: list[dict[str, Any]]) -> None:
    """The layer alone, on every layout, against one rank that holds all experts."""
    place = list(COUNTS).index(count)
    cells = {layout: [rank["layers"][f"{layout} {place}"] for rank in trainer] for layout in NAMES}
    assert {layout: sum(differing for differing, _ in ranks) for layout, ranks in cells.items()} == dict.fromkeys(
        NAMES, 0
    )
    assert sum(values for ranks in cells.values() for _, values in ranks) > 0


@pytest.mark.parametrize("layout", NAMES)
def test_gradients(layout: str, trainer: list[dict[str, Any]]) -> None:
    """Of the layer's input, router and experts, against float64. The largest error seen is a third of this."""
    for rank in trainer:
        assert max(rank["gradients"][layout]) < 0.02, rank["gradients"][layout]


@pytest.mark.parametrize("layout", NAMES_8)
def test_eight_ranks(
    layout: str, engine: dict[str, Any], trainer_8: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    record_property("cell", check(engine, layout, trainer_8))


def test_rotated_ranks_are_seen(trainer: list[dict[str, Any]]) -> None:
    """A test of the test: four ranks' nodes added in rotated order are another tree."""
    right, rotated = (torch.cat([rank["rotated"][name] for rank in trainer]) for name in ("right", "rotated"))
    assert (~torch.isin(rotated, right)).sum() > len(rotated) // 2


def test_hazards_fired(engine: dict[str, Any]) -> None:
    assert sum(engine["cached"]) >= 64
    assert len(set(engine["prompts"])) > 5


@pytest.mark.parametrize("layout", NAMES)
def test_weights(layout: str, place: Workplace, engine: dict[str, Any], trainer: list[dict[str, Any]]) -> None:
    """Both sides hold the checkpoint, however it is cut, and the trainer can hand the engine whole tensors."""
    checkpoint = place.fingerprints()
    assert place.fingerprints([rank[layout]["fingerprints"] for rank in trainer]) == checkpoint
    assert place.fingerprints(engine["fingerprints"]) == checkpoint
    assert all(rank[layout]["gathered"] for rank in trainer)


def test_tensor_parallel_engine(
    place: Workplace,
    engine_tp2: dict[str, Any],
    trainer: list[dict[str, Any]],
    record_property: Callable[[str, object], None],
) -> None:
    cell = compare(engine_tp2, RUN_TP2["name"], trainer, ("experts_tp2", "tp, sp, ep 1 off 1"))
    record_property("cell", cell.line())
    assert cell.of_logprobs > 0
    assert cell.clean, cell.line()
    assert place.fingerprints(engine_tp2["fingerprints"]) == place.fingerprints()
