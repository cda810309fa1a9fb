"""What kernels here refuse, seen to move bits on the device: fused products and sums, and dots in tf32."""

from __future__ import annotations

import pytest
import torch

from tests.support.apply_triton import dots, product_sums
from tests.support.bits import assert_same_bits, differing
from tests.support.inputs import normal
from tests.support.targets import HOPPER

pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


def test_fusion_moves_bits() -> None:
    a, b, c = (normal(1 << 20, seed=seed, device="cuda") for seed in (1, 2, 3))
    apart = product_sums(a, b, c, fusion=False)
    assert_same_bits(apart, a * b + c)
    assert differing(product_sums(a, b, c, fusion=True), apart) > 0.1 * apart.numel()


def test_tf32_loses_integers() -> None:
    """2049 is the first that it cannot hold; of those below 8192 it loses 4096."""
    values = torch.arange(8192.0, device="cuda")
    a, b = torch.zeros(16, 16, device="cuda"), torch.zeros(16, 8192, device="cuda")
    a[0, 0], b[0] = 1, values
    assert_same_bits(dots(a, b, "ieee")[0], values)
    lost = dots(a, b, "tf32")[0] != values
    assert lost.nonzero()[0].item() == 2049
    assert int(lost.sum()) == 4096
