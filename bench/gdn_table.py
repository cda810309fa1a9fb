"""The gated delta rule's five columns by three rows: `python -m bench.gdn_table [--quick]`, in CUDA graphs, paired.

Columns: native (FLA's chunk kernels; our tuned fp32 step), chunk everywhere, recurrent everywhere, CPR, RXC. Rows:
trainer forward and backward, rollout prefill into the caches, rollout decode at positions spread over a chunk.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch

from bench import harness
from bench.gdn import decode_floor, fla_chunk, forward_floor
from bench.gdn_cases import RECURRENT, attributes, recurrent, rows
from tests.support.rendering import render_kernel

COLUMNS = ("gdn_chunk_everywhere", "gdn_recurrent_everywhere", "gdn_cpr", "gdn_rxc")
GOALS = {
    ("gdn_rxc", "train"): "<=0.92",
    ("gdn_rxc", "prefill"): "<=0.88",
    ("gdn_rxc", "decode 256"): "<=0.75",
    ("gdn_rxc", "decode 16"): "<=0.95",
    ("gdn_cpr", "prefill"): "<1.67",
    ("gdn_cpr", "decode 256"): "<1.38",
}
SLOW = 20.0  # milliseconds from which one timed call is enough


def module(name: str, qk_heads: int) -> ModuleType:
    return render_kernel(name, "sm90", attributes(qk_heads))


def timed(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    ours()
    slow = harness.once(ours) > SLOW
    return harness.paired(ours if slow else harness.graph(ours), harness.graph(peer), rounds=3 if slow else 15)


def training(tokens: int, fla: Callable[..., Any]) -> Iterator[harness.Row]:
    given, cu = rows(tokens, 32), torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    inputs, grad = tuple(x.requires_grad_() for x in given.values()), torch.randn_like(given["v"])

    def run(rule: Callable[..., torch.Tensor]) -> None:
        torch.autograd.grad(rule(*inputs), inputs, grad)

    peer = partial(run, lambda *x: fla(*(part[None] for part in x))[0][0])
    for name in COLUMNS:
        kernel = module(name, 32)
        times = timed(partial(run, lambda *x, k=kernel: k.gated_delta_rule(*x, cu)), peer)
        yield row(name, "train", f"T={tokens}", times, "FLA chunk", 3 * forward_floor(tokens, 32))


def prefill(tokens: int, fla: Callable[..., Any]) -> Iterator[harness.Row]:
    given, cu = rows(tokens, 32), torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    slots = torch.ones(1, dtype=torch.int32, device="cuda")
    peer = partial(fla, **{n: x[None] for n, x in given.items()}, output_final_state=True)
    for name in COLUMNS:
        kernel = module(name, 32)
        state = kernel.new_caches(2, "cuda")
        times = timed(partial(kernel.gated_delta_extend, **given, cu_seqlens=cu, state=state, slots=slots), peer)
        yield row(name, "prefill", f"T={tokens}", times, "FLA chunk", forward_floor(tokens, 32))


def decode(lanes: int) -> Iterator[harness.Row]:
    given, slots = rows(lanes, 16), torch.randperm(lanes, device="cuda").int() + 1
    positions = (torch.arange(lanes, device="cuda") * 63 // max(lanes - 1, 1) + 128).int()

    def step(kernel: ModuleType) -> Callable[[], object]:
        state = kernel.new_caches(lanes + 1, "cuda")
        for cache in (state,) if isinstance(state, torch.Tensor) else state:
            cache.normal_().mul_(0.05)
        return partial(kernel.gated_delta_step, **given, state=state, slots=slots, positions=positions)

    peers = [(step(recurrent(16, launch)), launch) for launch in RECURRENT]
    peer, chosen = min(peers, key=lambda found: sorted(harness.once(harness.graph(found[0])) for _ in range(5))[2])
    for name in COLUMNS:
        times = timed(step(module(name, 16)), peer)
        yield row(name, f"decode {lanes}", f"B={lanes}", times, f"fp32 step {chosen}", decode_floor(lanes, 16))


def row(name: str, kind: str, size: str, times: tuple[float, float], peer: str, floor: float) -> harness.Row:
    return harness.row(f"{name} {kind} {size}", times[0], peer, times[1], floor, GOALS.get((name, kind), ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size of each, nothing saved to the results")
    quick = parser.parse_args().quick
    found: list[harness.Row] = []
    fla = fla_chunk()
    parts: list[Iterator[harness.Row]] = []
    with torch.no_grad():
        for lanes in (16, 256) if quick else (16, 64, 256):
            parts.append(decode(lanes))
        for tokens in (8192,) if quick else (8192, 16384):
            parts.append(prefill(tokens, fla))
        for part in parts:
            for line in part:
                print(*line.values(), flush=True)
                found.append(line)
    for tokens in (8192,) if quick else (8192, 16384):
        for line in training(tokens, fla):
            print(*line.values(), flush=True)
            found.append(line)
    if not quick:
        harness.save("gdn_table", found)


if __name__ == "__main__":
    main()
