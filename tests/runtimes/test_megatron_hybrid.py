"""The hybrid family in Megatron-core: gradients of every parameter through GDN, gated attention and shared experts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.runtimes import hybrid_reference
from tests.runtimes.conftest import Workplace
from tests.runtimes.processes import free_port, run_script

pytestmark = pytest.mark.runtime
RANKS = 2
LAYOUTS = [(1, False, 1), (1, False, 2), (2, False, 1), (2, True, 1), (2, True, 2)]
NAMES = [f"{tp} {'on' if sp else 'off'} {ep}" for tp, sp, ep in LAYOUTS]
# The first sequence ends in its second chunk of 64 tokens.
SEQUENCES = [[(7 * i * i + 3 * i) % 251 for i in range(78)], [1, 2, 250, 30]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("hybrid"), "fp32", "qwen3_5_tiny")


@pytest.fixture(scope="module")
def weights(place: Workplace) -> dict[str, torch.Tensor]:
    """The checkpoint in float64, with its gradients."""
    found = {k: v.double().requires_grad_() for k, v in load_file(place.model / "model.safetensors").items()}
    for sequence in SEQUENCES:
        hybrid_reference.logprobs(found, place.document["model"], torch.tensor(sequence)).sum().backward()
    return found


@pytest.fixture(scope="module")
def ranks(place: Workplace) -> list[dict[str, Any]]:
    job = place.job("gradients", runs=[], layouts=LAYOUTS, gradients=SEQUENCES, port=free_port(), world=RANKS)
    run_script("hybrid_process.py", job, RANKS)
    return [torch.load(place.out / f"gradients.{rank}.pt") for rank in range(RANKS)]


@pytest.mark.parametrize("layout", NAMES)
def test_every_parameter(layout: str, ranks: list[dict[str, Any]], weights: dict[str, torch.Tensor]) -> None:
    """Nothing is rounded between regions. The largest error seen is 5.9e-6."""
    for rank in ranks:
        gradients = rank[layout]["gradients"]
        assert gradients.keys() == weights.keys()
        for name, weight in weights.items():
            assert gradients[name].count_nonzero() > 0, f"{name} has no gradient"
            error = float((gradients[name].double() - weight.grad).norm() / weight.grad.norm())
            assert error < 2e-5, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("layout", ["1 off 1", "2 off 1", "2 on 1"])
def test_norm_of_gradients_counts_all(
    layout: str, ranks: list[dict[str, Any]], weights: dict[str, torch.Tensor]
) -> None:
    """Clipping would scale by the norm of a part of the gradients if a rank's share were taken for a copy."""
    copies = RANKS // int(layout[0])
    assert sum(rank[layout]["counted"] for rank in ranks) == copies * sum(w.numel() for w in weights.values())
