"""Laws of the ways in which log_softmax_leaves uses a Hopper GPU: clusters, and what is compiled for it."""

from __future__ import annotations

import pytest
import torch

from tests.laws.test_log_softmax import CONSTANTS, INF, LEAVES, NAME, kernel, logits
from tests.support.bits import assert_same_bits, one_nan, poisoned_outputs
from tests.support.inputs import integers
from tests.support.ptx import compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING

CLUSTER = LEAVES | {"schedule": "cluster", "token_schedule": "cluster"}


@pytest.mark.skipif(INTERPRETING, reason="clusters are not interpreted")
@pytest.mark.parametrize("warps", [4, 8])
@pytest.mark.parametrize("rows", [1, 17, 1027])
@pytest.mark.parametrize("leaf", [40, 64, 200, 264, 18992])
def test_a_cluster_has_the_bits_of_leaves(triton_place: str, leaf: int, rows: int, warps: int) -> None:
    """Leaves of less than a block, of one, of three and a rest with padding, of four and a rest, and those of Qwen3."""
    constants = {"leaves": 8, "block": 4096, "lanes": 512} if leaf > 4096 else CONSTANTS
    padded = 8 * leaf
    vocab = padded - 5 if leaf == 200 else padded
    values = logits(rows, triton_place, padded=padded)
    values[0, 3:9] = -INF
    if rows > 6:
        values[1, leaf + 3], values[2, -7], values[3], values[4, : padded // 2] = INF, float("nan"), -INF, -INF
    leaves, cluster = (
        kernel(triton_place, vocab, padded, 0.6, constants, **launch | {"cluster_warps": warps})
        for launch in (LEAVES, CLUSTER)
    )
    targets = integers(rows, below=vocab, seed=7, device=DEVICE[triton_place])
    targets[-1] = -100
    assert cluster.fits(cluster.CUT)
    with poisoned_outputs():
        for columns in {vocab, padded}:
            found, wanted = (module.log_softmax(values[:, :columns]) for module in (cluster, leaves))
            assert_same_bits(one_nan(found), one_nan(wanted))
            found, wanted = (module.token_logprobs(values[:, :columns], targets) for module in (cluster, leaves))
            assert_same_bits(one_nan(found), one_nan(wanted))
        again = cluster.log_softmax(values)
        assert_same_bits(one_nan(again), one_nan(cluster.log_softmax(values)), "twice")


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("vocab", [151936, 248320])
def test_ptx(vocab: int) -> None:
    attributes = {"vocab": vocab, "padded_vocab": vocab, "temperature": 1.0}
    values, targets = torch.empty(32, vocab), torch.zeros(32, dtype=torch.int64)
    with compiled_launches() as compiled:
        for launch in (LEAVES, CLUSTER):
            module = render_kernel(NAME, "sm90", attributes, launch=((None, launch),))
            module.log_softmax(values)
            module.token_logprobs(values, targets)
        module.shard_gradient(values, targets, torch.empty(32, 2), torch.empty(32), start=0)
    for variant in compiled:
        # The fused operations of exp have exact products.
        assert offences(variant.ptx, allowed=("fused multiply-add",)) == ()
    wide = {
        "_leaf_sums_kernel": "ld.global.v4.b32",
        "_log_softmax_cluster_kernel": "cp.async.cg.shared.global",
        "_token_logprobs_kernel": "ld.global.v2.b32",  # of eight warps, each down a part of the lanes
    }
    for name, instruction in wide.items():
        ptx = next(variant.ptx for variant in compiled if variant.name == name)
        assert ptx.count(instruction) >= 8, "a block, so many bytes at a time"
        assert ptx.count("st.shared") <= 24, "no block reaches shared memory through registers"
