"""Decays so fast that a chunk forgets more than fp32 holds: a short chunk's missing rows must not reach the others."""

from __future__ import annotations

import pytest
import torch

from tests.laws.gdn_inputs import Rows, edges, kernel, poisoned, rows, steps
from tests.support.bits import assert_same_bits
from tests.support.targets import DEVICE

LENGTH, CUTS = 70, (33, 47, 50, 63)


def fast(tokens: int, place: str) -> Rows:
    """The sum of log2 decays passes -128 after thirty rows."""
    given = rows(tokens, place, seed=5)
    return {**given, "g": given["g"] * 0 - 3.0}


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr"])
def test_rows_do_not_see_the_end_of_their_chunk(place: str, implementation: str) -> None:
    """Every prefix has the bits of the whole."""
    module, given = kernel(implementation, place), fast(LENGTH, place)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges((LENGTH,), place))
    assert whole.isfinite().all()
    for cut in CUTS:
        part = {name: x[:cut].contiguous() for name, x in given.items()}
        assert_same_bits(module.gated_delta_rule(**part, cu_seqlens=edges((cut,), place)), whole[:cut])


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr"])
def test_steps(place: str, implementation: str) -> None:
    """Row by row, in caches full of NaN."""
    module, given = kernel(implementation, place), fast(LENGTH, place)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges((LENGTH,), place))
    found = torch.full_like(whole, torch.nan)
    lanes = torch.ones(1, dtype=torch.int32, device=DEVICE[place])
    steps(module, given, (LENGTH,), 0, LENGTH, poisoned(module, 2, place), lanes, found, place)
    assert_same_bits(found, whole)


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr"])
def test_gradients_are_finite(place: str, implementation: str) -> None:
    module, given = kernel(implementation, place), fast(CUTS[1], place)
    leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
    module.gated_delta_rule(**leaves, cu_seqlens=edges((CUTS[1],), place)).float().sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves.values())
    assert torch.stack([leaf.grad.float().abs().amax() for leaf in leaves.values()]).min() > 0
