"""Where a contract may bind cuBLAS: shapes and rows at which it was seen to have the bits of the sequential product."""

from __future__ import annotations

import random

import pytest
import torch

from tests.support.bits import differing
from tests.support.inputs import hazards, normal, wide
from tests.support.products import module, one
from tests.support.targets import HOPPER

pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")

# n, k, and the fewest rows that a bucket with the schedule `cublas` may hold.
EQUAL_FROM = ((2048, 2048, 1), (4096, 4096, 256), (6144, 4096, 256), (24576, 4096, 256))
MOST_ROWS = 8192


@pytest.fixture(autouse=True)
def _full_precision_partial_sums() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


@pytest.mark.parametrize(("n", "k", "fewest"), EQUAL_FROM)
def test_cublas_is_the_sequential_product(n: int, k: int, fewest: int) -> None:
    ours = module("sm90", "matmul_sequential", n, k, one("tiles", 128, 128, 8, 3, 8)).matmul
    vendor = module("sm90", "matmul_sequential", n, k, one("cublas", 128, 128, 8, 3, 8)).matmul
    drawn = random.Random(n + k).sample(range(fewest, MOST_ROWS), 120)
    compared = 0
    for draw in (normal, wide, hazards):
        x = draw(MOST_ROWS, k, seed=1, dtype="bf16", device="cuda")
        weight = draw(n, k, seed=2, dtype="bf16", device="cuda")
        expected = ours(x, weight).view(torch.int16)
        for rows in (fewest, fewest + 1, 1024, 4096, MOST_ROWS, *drawn):
            found = vendor(x[:rows], weight).view(torch.int16)
            assert int((found != expected[:rows]).sum()) == 0, f"{rows} rows"
            compared += found.numel()
    assert compared > 1 << 28


def test_split_sums_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = module("sm90", "matmul_sequential", 2048, 2048, one("cublas", 128, 128, 8, 3, 8)).matmul
    x, weight = (normal(rows, 2048, seed=rows, dtype="bf16", device="cuda") for rows in (300, 2048))
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    with pytest.raises(ValueError, match="partial sums"):
        vendor(x, weight)


def test_few_rows_are_another_arithmetic() -> None:
    """The negative control: below the bucket cuBLAS splits the sum, and the law would see it."""
    ours = module("sm90", "matmul_sequential", 2048, 4096).matmul
    x, weight = (normal(rows, 4096, seed=rows, dtype="bf16", device="cuda") for rows in (64, 2048))
    assert sum(differing(torch.mm(x[:rows], weight.T), ours(x[:rows], weight)) for rows in (1, 8, 16, 64)) > 0
