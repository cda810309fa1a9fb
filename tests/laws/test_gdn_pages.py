"""Caches of the gated delta rule in pages, as an engine lays them out: a slot's caches one after the other, then room
that is not theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.laws.gdn_inputs import LENGTHS, edges, extend, kernel, poisoned, rows, steps
from tests.support.bits import assert_same_bits
from tests.support.targets import DEVICE

GAP = 48


def paged(caches: Any, device: str) -> tuple[Any, torch.Tensor]:
    """Views into one buffer of bytes [slots, page], and the bytes of every page that belong to no cache."""
    slots = caches[0].shape[0]
    sizes = [cache[0].numel() * cache.element_size() for cache in caches]
    buffer = torch.full((slots, sum(sizes) + GAP), 0x5A, dtype=torch.uint8, device=device)
    views, begin = [], 0
    for cache, size in zip(caches, sizes, strict=True):
        views.append(buffer[:, begin : begin + size].view(cache.dtype).unflatten(1, cache.shape[1:]))
        views[-1].fill_(float("nan"))
        begin += size
    return type(caches)(*views), buffer[:, begin:]


@pytest.mark.parametrize("prefill", [0, 50])
def test_pages_are_caches(place: str, prefill: int) -> None:
    """A prefill, decoding past an edge of a chunk, and a resume inside a chunk."""
    module, given = kernel("gdn_rxc", place), rows(sum(LENGTHS), place, seed=21 + prefill)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges(LENGTHS, place))
    lanes = torch.arange(len(LENGTHS), 0, -1, dtype=torch.int32, device=DEVICE[place])
    caches, rest = paged(poisoned(module, len(LENGTHS) + 1, place), DEVICE[place])
    assert not any(cache.is_contiguous() for cache in caches)
    found, middle = torch.full_like(whole, torch.nan), prefill + 16
    first, second, last = ([min(end, n) for n in LENGTHS] for end in (prefill, middle, max(LENGTHS)))
    if prefill:
        index, out = extend(module, given, LENGTHS, [0] * len(LENGTHS), first, caches, lanes, place)
        found[index] = out
    steps(module, given, LENGTHS, prefill, middle, caches, lanes, found, place)
    index, out = extend(module, given, LENGTHS, second, last, caches, lanes, place)
    found[index] = out
    assert_same_bits(found, whole)
    assert (rest == 0x5A).all()
