"""Where packed sequences start: remembered from layer to layer, never past a change of the batch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from tests.runtimes.conftest import CONTRACTS, compile_contract

Places = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    folder = tmp_path_factory.mktemp("generated")
    contract = folder / "packed.yaml"  # a name of its own: a process can hold one package of a name
    contract.write_text((CONTRACTS / "tiny_dense.yaml").read_text().replace("contract: tiny_dense", "contract: packed"))
    compile_contract(contract, folder)
    sys.path.insert(0, str(folder))
    yield importlib.import_module("packed.adapters.megatron_attention").places
    sys.path.remove(str(folder))


def packed(starts: torch.Tensor, padded: torch.Tensor | None = None) -> SimpleNamespace:
    return SimpleNamespace(cu_seqlens_q=starts, cu_seqlens_q_padded=padded)


def test_even_batches(places: Places) -> None:
    for length, batch in ((3, 2), (4, 2), (1, 1), (3, 2)):
        starts, positions = places(torch.empty(length, batch, 8), None)
        assert starts.tolist() == [i * length for i in range(batch + 1)]
        assert positions.tolist() == list(range(length)) * batch


def test_packed_batches(places: Places) -> None:
    starts = torch.tensor([0, 2, 2, 5], dtype=torch.int32)
    given = packed(starts)
    first = places(torch.empty(5, 8), given)
    assert first[1].tolist() == [0, 1, 0, 1, 2]
    assert places(torch.empty(5, 8), given) is first
    starts[1:3] = 1
    assert places(torch.empty(5, 8), given)[1].tolist() == [0, 0, 1, 2, 3]
    assert places(torch.empty(5, 8), packed(starts, torch.tensor([0, 5])))[1].tolist() == [0, 1, 2, 3, 4]


def test_tensors_that_count_no_writes_are_read_anew(places: Places) -> None:
    with torch.inference_mode():
        starts = torch.tensor([0, 1, 4], dtype=torch.int32)
        given = packed(starts)
        assert places(torch.empty(4, 8), given)[1].tolist() == [0, 0, 1, 2]
        starts[1] = 2
        _, positions = places(torch.empty(4, 8), given)
    assert positions.tolist() == [0, 1, 0, 1]
    assert not positions.is_inference()
