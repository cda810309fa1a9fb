"""The promise: however the engine scheduled a request and however the trainer is cut, no bit of a log-prob differs.

Each cell compares the log-probabilities of all sampled tokens (and of prompts, where the engine reports them) and the
digests of every row that every region produced. The printed matrix gives the counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtimes.comparison import compare
from tests.runtimes.conftest import LAYOUTS, PLAIN, RUNS, SMALL, Workplace
from tests.support.bits import differing

pytestmark = pytest.mark.runtime
Recorder = Callable[[str, object], None]
NAMES = tuple(run["name"] for run in RUNS)
BATCHINGS = ("alone", "padded", "packed")
EVERYWHERE = (*NAMES[:2], *NAMES[3:5])
CELLS = [(name, "tp1") for name in NAMES] + [
    (name, layout) for layout in LAYOUTS if layout != "tp1" for name in EVERYWHERE
]


@pytest.mark.parametrize("batching", BATCHINGS)
@pytest.mark.parametrize(("name", "layout"), CELLS)
def test_cell(
    name: str, layout: str, batching: str, sampled: dict[str, Any], scored: dict[str, Any], record_property: Recorder
) -> None:
    cell = compare(sampled[name], f"{name}|{batching}|", scored[layout], (name, f"{layout} {batching}"))
    record_property("cell", cell.line())
    assert cell.of_logprobs > 0
    assert cell.clean, cell.line()


def test_whole_distributions(sampled: dict[str, Any], scored: dict[str, Any]) -> None:
    """Every log-probability of the vocabulary, not only the sampled token's."""
    engine, trainer = sampled["together"], scored["tp1"][0]["whole"]
    compared = 0
    for prompt, rows, scored_rows in zip(engine["prompts"], engine["rows"], trainer, strict=True):
        assert differing(rows, scored_rows[prompt - 1 : prompt - 1 + len(rows)]) == 0
        compared += rows.numel()
    assert compared > 50_000


def test_hazards_fired(sampled: dict[str, Any]) -> None:
    """The runs are what their names say: prefixes hit, requests preempted, chunks cut, lengths uneven."""
    assert sum(sampled["prefix_cold_then_warm"]["cached"]) >= 256
    assert sum(sampled["prefix_page_32"]["cached"]) >= 256
    assert sum(sampled["together"]["cached"]) == 0
    assert sampled["preempted"]["computed"] > sum(map(len, sampled["preempted"]["sequences"])), "nothing was recomputed"
    assert max(sampled["chunks_of_32"]["prompts"]) > 32
    assert len({len(s) for s in sampled["arriving_and_leaving"]["sampled"]}) > 2


def test_compiled(bf16: Workplace, record_property: Recorder) -> None:
    """Under Inductor every region is one opaque operator, and the bits are those of eager execution."""
    compiled = {**SMALL, "enforce_eager": False, "enable_prefix_caching": True, "max_num_batched_tokens": 48}
    engine = bf16.engine("compiled", {"name": "compiled", "engine": compiled, "max_tokens": 12})["compiled"]
    ranks = bf16.trainer("trainer_compiled", "compiled")
    for batching in BATCHINGS:
        cell = compare(engine, f"compiled|{batching}|", ranks, ("compiled", f"tp1 {batching}"))
        record_property("cell", cell.line())
        assert cell.clean, cell.line()


def test_tensor_parallel_engine(bf16: Workplace, record_property: Recorder) -> None:
    arguments = {**PLAIN, "tensor_parallel_size": 2, "max_num_batched_tokens": 48}
    engine = bf16.engine("engine_tp2", {"name": "engine_tp2", "engine": arguments, "max_tokens": 12})["engine_tp2"]
    assert bf16.fingerprints(engine["fingerprints"]) == bf16.fingerprints()
    for layout in ("tp1", "tp4+sp"):
        ranks = bf16.trainer(f"trainer_for_tp2_{layout}", "engine_tp2", layout=layout)
        for batching in BATCHINGS:
            cell = compare(engine, f"engine_tp2|{batching}|", ranks, ("engine_tp2", f"{layout} {batching}"))
            record_property("cell", cell.line())
            assert cell.clean, cell.line()


def test_fp32(fp32: Workplace, sampled_fp32: dict[str, Any], record_property: Recorder) -> None:
    """Nothing is rounded between regions, so that no wrong order can hide."""
    for layout in ("tp1", "tp2+sp"):
        ranks = fp32.trainer(f"trainer_fp32_{layout}", *sampled_fp32, layout=layout)
        for name, result in sampled_fp32.items():
            for batching in BATCHINGS:
                cell = compare(result, f"{name}|{batching}|", ranks, (name, f"{layout} {batching}"))
                record_property("cell", cell.line())
                assert cell.clean, cell.line()


def test_ledgers(sampled: dict[str, Any], scored: dict[str, Any]) -> None:
    """Each rank recorded INSTALL and FIRST_FORWARD without a problem."""
    reports = [*sampled["together"]["report"], *(rank["report"] for rank in scored["tp4+sp"])]
    for report in reports:
        done = {entry["obligation"] for entry in report["entries"] if not entry["problems"]}
        assert {"INSTALL", "FIRST_FORWARD"} <= done
        assert report["outstanding"] == []
    assert len({torch.tensor(list(r["runs"].values())).sum().item() for r in reports[1:]}) == 1
