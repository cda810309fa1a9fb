"""The hybrid end to end: an engine that prefills whole, in chunks and token by token, a trainer of four ranks.

GDN layers keep a state from token to token in the engine, and see whole sequences in the trainer; no bit may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from examples import tiny
from tests.runtimes import hybrid_dense
from tests.runtimes.comparison import compare
from tests.runtimes.conftest import PLAIN, Workplace
from tests.runtimes.hybrid_mutations import MUTATIONS
from tests.runtimes.processes import free_port, run_script
from tests.support.bits import differing

pytestmark = pytest.mark.runtime
RANKS = 4
LAYOUTS = [(1, False, 1), (1, False, 4), (2, False, 1), (2, True, 2), (4, False, 1), (4, True, 1), (4, True, 4)]
NAMES = [f"{tp} {'on' if sp else 'off'} {ep}" for tp, sp, ep in LAYOUTS]
# Chunks of 48 tokens end anywhere in the 64 of the delta rule; the last run also decodes past their second end.
RUNS = (
    {"name": "hybrid_together", "engine": PLAIN, "max_tokens": 12, "uneven": True},
    {"name": "hybrid_arriving", "engine": PLAIN, "max_tokens": 10, "staggered": True},
    {"name": "hybrid_compiled", "engine": {**PLAIN, "enforce_eager": False}, "max_tokens": 8},
    {"name": "hybrid_chunks", "engine": {**PLAIN, "max_num_batched_tokens": 48, "max_num_seqs": 5}, "max_tokens": 28},
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    made = Workplace(tmp_path_factory.mktemp("hybrid"), "bf16", "qwen3_5_tiny")
    made.prompts = tiny.prompts(6, made.document["model"]["config"]["vocab_size"], 100)
    return made


@pytest.fixture(scope="module")
def engine(place: Workplace) -> dict[str, Any]:
    return place.engine("engine", *RUNS)


@pytest.fixture(scope="module")
def trainer(place: Workplace, engine: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of each rank."""
    job = place.job("trainer", runs=list(engine), layouts=LAYOUTS, port=free_port(), world=RANKS)
    run_script("hybrid_process.py", job, RANKS)
    return [torch.load(place.out / f"trainer.{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("run", [run["name"] for run in RUNS])
def test_schedule(
    run: str, engine: dict[str, Any], trainer: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    """However the engine cut and batched the requests."""
    cell = compare(engine[run], f"{NAMES[0]} {run}", trainer[:1], (run, "tp, sp, ep 1 off 1"))
    record_property("cell", cell.line())
    assert cell.of_logprobs > 40
    assert cell.clean, cell.line()
    assert torch.cat(engine[run]["sampled"]).isfinite().all()


@pytest.mark.parametrize("layout", NAMES)
def test_layout(
    layout: str, engine: dict[str, Any], trainer: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    """However the trainer is cut. Every region is compared row by row."""
    run = RUNS[-1]["name"]
    cell = compare(engine[run], f"{layout} {run}", trainer, (run, f"tp, sp, ep {layout}"))
    record_property("cell", cell.line())
    assert cell.of_logprobs > 600
    assert cell.missing.keys() == trainer[0]["probes"].keys() - {"logprobs"}
    assert cell.clean, cell.line()


@pytest.mark.parametrize("layout", NAMES)
def test_weights(layout: str, place: Workplace, engine: dict[str, Any], trainer: list[dict[str, Any]]) -> None:
    """Both sides hold the checkpoint, however it is cut, and the trainer can hand the engine whole tensors."""
    run = RUNS[-1]["name"]
    checkpoint = place.fingerprints()
    assert place.fingerprints([rank[f"{layout} {run}"]["fingerprints"] for rank in trainer]) == checkpoint
    assert place.fingerprints(engine[run]["fingerprints"]) == checkpoint
    assert all(rank[f"{layout} {run}"]["gathered"] for rank in trainer)


@pytest.mark.parametrize("wrong", MUTATIONS)
def test_wrong_is_seen(
    wrong: str, engine: dict[str, Any], trainer: list[dict[str, Any]], record_property: Callable[[str, object], None]
) -> None:
    """A test of the test: one wrong in the trainer alone."""
    cell = compare(engine[RUNS[-1]["name"]], wrong, [trainer[0]["wrongs"]], (RUNS[-1]["name"], f"({wrong})"))
    record_property("cell", cell.line())
    assert cell.logprobs > cell.of_logprobs // 2, f"{wrong} moved {cell.logprobs} of {cell.of_logprobs}"


def test_cast_to_bf16(trainer: list[dict[str, Any]]) -> None:
    """Megatron's wrapper casts parameters; the two vectors of a GDN layer stay fp32, and the bits stay."""
    cast, plain = trainer[0]["cast"], trainer[0][f"{NAMES[0]} {RUNS[-1]['name']}"]
    kept = {name for name, dtype in cast["dtypes"].items() if dtype == torch.float32}
    assert {name.rpartition(".")[2] for name in kept} == {"A_log", "dt_bias"}
    assert sum(differing(a, b) for a, b in zip(cast["logprobs"], plain["logprobs"], strict=True)) == 0


def test_hazards_fired(engine: dict[str, Any]) -> None:
    """Prompts are cut within a chunk of the delta rule, and sequences end in a second and a third chunk of 64."""
    chunked = engine[RUNS[-1]["name"]]
    assert max(chunked["prompts"]) > 64 + 48 // 2
    assert {len(s) // 64 for s in chunked["sequences"]} >= {0, 1}


def test_dense(tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]) -> None:
    """The same stack with a gated MLP in every layer."""
    place = hybrid_dense.workplace(tmp_path_factory.mktemp("dense_hybrid"))
    place.prompts = tiny.prompts(6, 256, 100)
    engine = place.engine("engine", RUNS[-1])
    ranks = place.trainer("trainer", *engine, layout="tp2+sp", batchings=["packed"])
    (run,) = engine
    cell = compare(engine[run], f"{run}|packed|", ranks, (f"dense {run}", "tp2+sp packed"))
    record_property("cell", cell.line())
    assert cell.of_logprobs > 200
    assert cell.missing.keys() >= {"gdn_core", "gdn_out", "attn_gate", "down"}
    assert cell.clean, cell.line()
    assert torch.cat(engine[run]["sampled"]).isfinite().all()
    assert place.fingerprints(engine[run]["fingerprints"]) == place.fingerprints()
