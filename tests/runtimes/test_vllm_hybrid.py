"""The hybrid inside the engine alone: a token has the same bits decoded, prefilled whole, in chunks, or recomputed, and
from a checkpoint as such models are published.

The sequences cross up to three edges of the delta rule's chunks of 64, in slots that served other sequences before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.runtimes.conftest import Workplace
from tests.runtimes.processes import run_script
from tests.support.bits import differing

pytestmark = pytest.mark.runtime
LENGTHS = (1, 3, 62, 63, 64, 65, 100, 160)
RUNS = ("together", "arriving", "preempted")
SCORES = ("whole", "cut", "published")
REFUSED = {
    "stock layer": "is a Unregistered, not the adapter's GatedDeltaNet",
    "another state dtype": "mamba_cache_dtype is 'float16', the contract needs 'auto'",
    "other layers": r"layer_types is \['full_attention'",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("vllm_hybrid"), "bf16", "qwen3_5_tiny")


@pytest.fixture(scope="module")
def engine(place: Workplace) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in LENGTHS]
    run_script("vllm_hybrid_process.py", place.job("hybrid", prompts=prompts))
    found: dict[str, Any] = torch.load(place.out / "hybrid.pt", weights_only=False)
    return found


def differences(engine: dict[str, Any], run: str, score: str) -> tuple[int, int]:
    """Bits of the run's sampled tokens against the same tokens as prompts: differing log-probabilities, of how many."""
    first = sum(len(other["sequences"]) for other in list(engine["runs"].values())[: list(engine["runs"]).index(run)])
    sampled, counts = engine["runs"][run], [0, 0]
    for i, (prompt, decoded) in enumerate(zip(sampled["prompts"], sampled["sampled"], strict=True)):
        counts[0] += differing(decoded, engine["scores"][score][first + i][prompt - 1 :])
        counts[1] += len(decoded)
    return counts[0], counts[1]


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("run", RUNS)
def test_decode_is_prefill(
    run: str, score: str, engine: dict[str, Any], record_property: Callable[[str, object], None]
) -> None:
    differ, compared = differences(engine, run, score)
    record_property("cell", f"{run:<24} {score:<20} {differ:>4} of {compared}")
    assert compared > 200
    assert differ == 0


def test_rounded_state_is_seen(engine: dict[str, Any]) -> None:
    """A test of the test: the state between chunks kept in bf16, in the decoding steps alone."""
    assert differences(engine, "rounded", "whole")[0] > 0


def test_hazards_fired(engine: dict[str, Any]) -> None:
    """Sequences cross chunk edges, steps mix one row and many, running requests are recomputed, slots serve again."""
    lengths = {len(s) // 64 for s in engine["runs"]["together"]["sequences"]}
    assert lengths >= {1, 2, 3}
    assert engine["operators"]["arriving"]["gated_delta_step_beside"] > 0
    extends = {run: engine["operators"][run]["gated_delta_extend"] for run in ("together", "preempted")}
    assert extends["preempted"] > 2 * extends["together"]
    assert sum(len(run["sequences"]) for run in engine["runs"].values()) > 8


def test_cached_states(engine: dict[str, Any]) -> None:
    """The states at the end of a cached page are resumed from."""
    cached = engine["cached"]
    assert cached["hit"] > 1600
    assert differing(cached["cold"], cached["warm"]) == 0


def test_nothing_outside_a_region(engine: dict[str, Any]) -> None:
    assert engine["audit"] == [{}]


def test_weights(place: Workplace, engine: dict[str, Any]) -> None:
    assert place.fingerprints(engine["fingerprints"]) == place.fingerprints()


@pytest.mark.parametrize("check", REFUSED)
def test_refused(check: str, engine: dict[str, Any]) -> None:
    assert re.search(REFUSED[check], engine["said"][check]), engine["said"][check] or "nothing was refused"


def test_tensor_parallel(place: Workplace, engine: dict[str, Any]) -> None:
    """Four ranks, each with a quarter of the heads, the states and the width of every expert: the bits of one."""
    one, cut = engine["runs"]["together"], 120
    chosen = [i for i, s in enumerate(one["sequences"]) if one["prompts"][i] < cut < len(s)]
    place.prompts = [one["sequences"][i][:cut] for i in chosen]
    plain = {"max_num_batched_tokens": 100, "max_num_seqs": 4, "enforce_eager": True, "tensor_parallel_size": 4}
    four = place.engine("tp4", {"name": "tp4", "engine": plain, "prompt_logprobs": True, "max_tokens": 4})["tp4"]
    compared = 0
    for i, scored in zip(chosen, four["prompt"], strict=True):
        decoded = one["sampled"][i][: cut - one["prompts"][i]]
        assert differing(scored[one["prompts"][i] - 1 :], decoded) == 0
        compared += len(decoded)
    assert compared > 200
    assert place.fingerprints(four["fingerprints"]) == place.fingerprints()
