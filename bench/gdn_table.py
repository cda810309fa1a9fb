"""The gated delta rule's five columns by three rows: `python -m bench.gdn_table [--quick]`, in CUDA graphs, paired.

Columns: native (chunk kernels, then a recurrent step), chunk everywhere, recurrent everywhere, CPR, RXC. Rows: trainer
forward and backward, rollout prefill into the caches, rollout decode: eight consecutive steps of lanes spread over a
chunk, and steps in which all lanes fill their chunk together. Peers: flash-linear-attention's chunk kernels, tuned by
its own search, and our fp32 recurrent step at the best of its launches. Rows are saved as they come.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch

from bench import harness
from bench.autotuned import compile_candidates, measure_briefly
from bench.gdn import decode_floor, fla_chunk, forward_floor
from bench.gdn_cases import RECURRENT, attributes, compile_launchers, recurrent, rows
from tests.support.rendering import render_kernel

COLUMNS = {
    "native": ("gdn_native_chunk", "gdn_native_step"),
    "chunk": ("gdn_chunk_everywhere",) * 2,
    "recurrent": ("gdn_recurrent_everywhere",) * 2,
    "cpr": ("gdn_cpr",) * 2,
    "rxc": ("gdn_rxc",) * 2,
}
GOALS = {
    ("rxc", "train"): "<=0.92",
    ("rxc", "prefill"): "<=0.88",
    ("rxc", "decode B=256"): "<=0.75",
    ("rxc", "decode B=16"): "<=0.95",
    ("cpr", "prefill"): "<1.67",
    ("cpr", "decode B=16"): "<1.38",
    ("cpr", "decode B=64"): "<1.38",
    ("cpr", "decode B=256"): "<1.38",
}
SLOW = 5.0  # milliseconds from which few timed calls are enough
STEPS = 8


def module(column: str, decoding: bool, qk_heads: int) -> ModuleType:
    return render_kernel(COLUMNS[column][decoding], "sm90", attributes(qk_heads))


def timed(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    ours()
    slow = harness.once(ours) > SLOW
    return harness.paired(harness.graph(ours), peer, rounds=5 if slow else 15)


def training(tokens: int, fla: Callable[..., Any]) -> Iterator[harness.Row]:
    given, cu = rows(tokens, 32), torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    inputs, grad = tuple(x.requires_grad_() for x in given.values()), torch.randn_like(given["v"])

    def run(rule: Callable[..., torch.Tensor]) -> None:
        torch.autograd.grad(rule(*inputs), inputs, grad)

    peer = harness.graph(partial(run, lambda *x: fla(*(part[None] for part in x))[0][0]))
    for column in reversed(COLUMNS):
        kernel = module(column, False, 32)
        times = timed(partial(run, lambda *x, k=kernel: k.gated_delta_rule(*x, cu)), peer)
        yield row(column, "train", f"T={tokens}", times, "FLA chunk", 3 * forward_floor(tokens, 32))


def prefill(tokens: int, fla: Callable[..., Any]) -> Iterator[harness.Row]:
    given, cu = rows(tokens, 32), torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    slots = torch.ones(1, dtype=torch.int32, device="cuda")
    peer = harness.graph(partial(fla, **{n: x[None] for n, x in given.items()}, output_final_state=True))
    for column in reversed(COLUMNS):
        kernel = module(column, False, 32)
        state = kernel.new_caches(2, "cuda")
        times = timed(partial(kernel.gated_delta_extend, **given, cu_seqlens=cu, state=state, slots=slots), peer)
        yield row(column, "prefill", f"T={tokens}", times, "FLA chunk", forward_floor(tokens, 32))


def decode(lanes: int) -> Iterator[harness.Row]:
    given, slots = rows(lanes, 16), torch.randperm(lanes, device="cuda").int() + 1
    spread = torch.arange(lanes, device="cuda") * 64 // lanes + 128
    places = {
        "decode": [(spread + j).int() for j in range(STEPS)],
        "decode at the edge": [spread.int() * 0 + 191] * STEPS,
    }

    def steps(kernel: ModuleType, positions: list[torch.Tensor]) -> Callable[[], object]:
        state = kernel.new_caches(lanes + 1, "cuda")
        for cache in (state,) if isinstance(state, torch.Tensor) else state:
            cache.normal_().mul_(0.05)
        step = partial(kernel.gated_delta_step, **given, state=state, slots=slots)
        return lambda: [step(positions=p) for p in positions]

    graphs = [(harness.graph(steps(recurrent(16, launch), places["decode"])), launch) for launch in RECURRENT]
    peer, chosen = min(graphs, key=lambda found: sorted(harness.once(found[0]) for _ in range(7))[3])
    for kind, positions in places.items():
        for column in ("rxc", "cpr", "native", "recurrent", "chunk") if kind == "decode" else ("rxc", "cpr"):
            ours, theirs = timed(steps(module(column, True, 16), positions), peer)
            times, name = (ours / STEPS, theirs / STEPS), f"fp32 step {chosen}"
            yield row(column, f"{kind} B={lanes}", "", times, name, decode_floor(lanes, 16))


def row(column: str, kind: str, size: str, times: tuple[float, float], peer: str, floor: float) -> harness.Row:
    name = f"{column} {kind} {size}".strip()
    return harness.row(name, times[0], peer, times[1], floor, GOALS.get((column, kind), ""))


def compile_all() -> None:
    """Every kernel of ours into Triton's cache, in processes beside one another, before anything is timed."""
    packed, step = {"gated_delta_rule": 8192, "gated_delta_extend": 8192}, {"gated_delta_step": 64}
    jobs: list[tuple[str, int, dict[str, int], dict[str, int]]] = []
    for prefilling, decoding in COLUMNS.values():
        jobs += [(prefilling, 32, {}, packed), (decoding, 16, {}, step)]
    jobs += [("gdn_native_step", 16, {"recurrent_block_v": b, "recurrent_warps": w}, step) for b, w in RECURRENT]
    with multiprocessing.get_context("fork").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        for job, reason in zip(jobs, pool.map(compile_launchers, jobs, chunksize=1), strict=True):
            if reason:
                print(f"not compiled: {job}: {reason}", flush=True)


def peer_once() -> None:
    inputs = tuple(x.requires_grad_() for x in rows(8192, 32).values())
    out = fla_chunk()(*(x[None] for x in inputs), output_final_state=True)[0]
    out.backward(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size of each, nothing saved to the results")
    quick = parser.parse_args().quick
    found: list[harness.Row] = []
    tuning = compile_candidates(peer_once, (os.cpu_count() or 2) // 2)
    compile_all()

    def take(part: Iterator[harness.Row]) -> None:
        try:
            for line in part:
                print(*line.values(), flush=True)
                found.append(line)
                if not quick:
                    harness.write("gdn_table", found)
        except Exception as error:  # a peer that does not run must not cost the other rows
            print(f"{type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)

    with torch.no_grad():
        for lanes in (16, 256) if quick else (16, 256, 64):
            take(decode(lanes))
    for process in tuning:
        process.join(60)
    measure_briefly()
    fla = fla_chunk()
    for tokens in (8192,) if quick else (8192, 16384):
        with torch.no_grad():
            take(prefill(tokens, fla))
        take(training(tokens, fla))


if __name__ == "__main__":
    main()
