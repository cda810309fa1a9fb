"""Row-wise kernels in CUDA graphs: the bits of eager calls, one pattern over repeats on poisoned outputs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.support.bits import assert_same_bits
from tests.support.inputs import integers, normal
from tests.support.rendering import render_kernel
from tests.support.targets import HOPPER

pytestmark = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")

ROWS = (1, 17, 257)
Call = Callable[[], tuple[torch.Tensor, ...]]


def calls(rows: int) -> dict[str, Call]:
    """One call of every function, on inputs of its own; each is a chain, so that dependent launches overlap."""
    draw = {"dtype": "bf16", "device": "cuda"}
    norm = render_kernel("rms_norm_rows", "sm90", {"width": 1024, "eps": 1e-6, "gamma": "plain"})
    angles = {"head_dim": 128, "rotary_dim": 128, "theta": 1e6, "max_positions": 512}
    rotary = render_kernel("rotary_table", "sm90", angles)
    gate = render_kernel("silu_gate_rows", "sm90", {"width": 1024})
    softmax = render_kernel("log_softmax_leaves", "sm90", {"vocab": 8000, "padded_vocab": 8192, "temperature": 1.0})
    x, residual = (normal(rows, 1024, seed=seed, **draw) for seed in (1, 2))
    weight, wide = normal(1024, seed=3, **draw), normal(rows, 2048, seed=4, **draw)
    heads, positions = normal(rows, 8, 128, seed=5, **draw), integers(rows, below=512, seed=6, device="cuda")
    logits, targets = normal(rows, 8192, seed=7, device="cuda"), integers(rows, below=8000, seed=8, device="cuda")
    return {
        "rms_norm": lambda: (norm.rms_norm(norm.rms_norm(x, weight), weight),),
        "add_rms_norm": lambda: norm.add_rms_norm(*norm.add_rms_norm(x, residual, weight), weight),
        "rotary": lambda: rotary.rotary(*rotary.rotary(heads[:, :6], heads[:, 6:], positions), positions),
        "silu_gate": lambda: (gate.silu_gate(torch.cat((gate.silu_gate(wide),) * 2, 1)),),
        "log_softmax": lambda: (softmax.log_softmax(softmax.log_softmax(logits)),),
        "token_logprobs": lambda: (softmax.token_logprobs(softmax.log_softmax(logits), targets),),
    }


@pytest.mark.parametrize("rows", ROWS)
def test_a_captured_call_has_the_bits_of_an_eager_one(rows: int) -> None:
    for name, call in calls(rows).items():
        expected = call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = call()
        for _ in range(100):
            for out in found:
                out.fill_(float("nan"))
            graph.replay()
            for out, wanted in zip(found, expected, strict=True):
                assert_same_bits(out, wanted, f"{name}, {rows} rows")
