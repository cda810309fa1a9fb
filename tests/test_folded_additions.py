"""No addition of a generated kernel is folded into a product, which would sum in another order and precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from isoexec_compiler import pipeline, toolchain
from tests.support.folds import folded_additions
from tests.support.ptx import compiled_launches
from tests.support.targets import INTERPRETING

CONTRACTS = Path(__file__).parent.parent / "contracts"
GENERATED = Path(__file__).parent.parent / "generated"

pytestmark = pytest.mark.skipif(INTERPRETING, reason="the interpreter compiles nothing")


@triton.jit
def _two_products_kernel(x, out, KNOWN: tl.constexpr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(x + at)
    if KNOWN:
        zero = tl.zeros((16, 16), tl.float32)
    else:
        zero = tl.full((16, 16), tl.where(tl.load(x).to(tl.float32) > 1e30, 1.0, 0.0), tl.float32)
    tl.store(out + at, tl.dot(tile, tile, zero) + tl.dot(tile, tl.trans(tile), zero))


@pytest.mark.parametrize("known", [True, False])
def test_a_known_zero_is_what_folds(known: bool) -> None:
    with compiled_launches() as found:
        _two_products_kernel[(1,)](torch.empty(16, 16, dtype=torch.bfloat16), torch.empty(16, 16), known)
    (kernel,) = found
    assert len(list(folded_additions(kernel.source))) == known
    assert ("arith.addf" in kernel.ttgir) != known


@pytest.mark.parametrize("name", ["tiny_dense", "qwen3_5_tiny"])
def test_no_kernel_of_a_contract_is_folded(name: str) -> None:
    path = CONTRACTS / f"{name}.yaml"
    contract, problems = pipeline.load(path.read_bytes(), path.name)
    assert contract is not None, problems
    kernels = [kernel for kernel in pipeline.build(contract).plan.kernels if kernel.target == "sm90"]
    sources = {
        f"{kernel.module}.{variant}": compiled.source
        for kernel in kernels
        for variant, compiled in toolchain.compiled(name, kernel, GENERATED).items()
    }
    assert sum("tt.dot" in source for source in sources.values()) >= 10
    assert not {variant: folds for variant, source in sources.items() if (folds := list(folded_additions(source)))}
