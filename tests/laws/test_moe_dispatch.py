"""Dispatch laws: a stable sort by expert, exact for every load."""

from __future__ import annotations

import pytest
import torch

from tests.laws.test_moe_router import selector
from tests.support.bits import assert_same_bits
from tests.support.inputs import integers
from tests.support.targets import DEVICE


def stable(chosen: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The sort from sorted Python tuples, and the first row of each expert from counting."""
    flat = chosen.flatten().tolist()
    order = [slot for _, slot in sorted((expert, slot) for slot, expert in enumerate(flat))]
    starts = [sum(e < expert for e in flat) for expert in range(count + 1)]
    return torch.tensor(order, dtype=torch.int32), torch.tensor(starts, dtype=torch.int32)


@pytest.mark.parametrize("count", [8, 128, 256, 512])
@pytest.mark.parametrize("tokens", [1, 3, 7, 33, 700])
def test_dispatch_is_a_stable_sort(place: str, count: int, tokens: int) -> None:
    tokens = min(tokens, 40) if place == "interpreter" else tokens
    chosen = integers(tokens, 8, below=count, seed=tokens).to(torch.int32)
    loads = {
        "uniform": chosen,
        "one expert": torch.full_like(chosen, count - 1),
        "few experts": chosen % 3,
        "many empty": chosen // 4 * 4,
    }
    for load, experts in loads.items():
        order, offsets = selector(place, 8, 2).dispatch(experts.to(DEVICE[place]), count)
        wanted, starts = stable(experts, count)
        assert_same_bits(order.cpu(), wanted, f"order, {load}")
        assert_same_bits(offsets.cpu(), starts, f"offsets, {load}")


def test_a_large_batch(place: str) -> None:
    """More slots than one program counts."""
    tokens = {"sm90": 20480, "cpu": 20480, "interpreter": 150}[place]
    chosen = integers(tokens, 8, below=256, seed=9).to(torch.int32)
    order, offsets = selector(place, 8, 2).dispatch(chosen.to(DEVICE[place]), 256)
    wanted = chosen.flatten().long().argsort(stable=True).to(torch.int32)
    assert_same_bits(order.cpu(), wanted)
    assert_same_bits(offsets.cpu()[1:], chosen.flatten().long().bincount(minlength=256).cumsum(0).to(torch.int32))


def test_no_slots(place: str) -> None:
    order, offsets = selector(place, 8, 2).dispatch(torch.empty(0, 8, dtype=torch.int32, device=DEVICE[place]), 16)
    assert order.shape == (0,)
    assert offsets.cpu().tolist() == [0] * 17


def test_refusals(place: str) -> None:
    with pytest.raises(ValueError, match="int32"):
        selector(place, 8, 2).dispatch(torch.zeros(4, 2, dtype=torch.int64, device=DEVICE[place]), 8)
