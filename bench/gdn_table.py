"""The gated delta rule's five columns by three rows: `python -m bench.gdn_table [--only PART]`, in CUDA graphs.

Columns: native (chunk kernels, then a recurrent step), chunk everywhere, recurrent everywhere, CPR, RXC. Packed rows,
in `results/gdn_packed.json`: trainer forward and backward, and rollout prefill into the caches, paired with
flash-linear-attention's chunk kernels, tuned by its own search. Decode rows, in `results/gdn_decode.json`: eight
consecutive steps of lanes spread over a chunk, and steps in which all lanes fill their chunk together, paired with our
fp32 recurrent step at the best of its launches. Rows are saved as they come.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType

import torch

from bench import harness
from bench.autotuned import compile_candidates, measure_briefly
from bench.gdn import decode_floor, fla_chunk, forward_floor
from bench.gdn_cases import RECURRENT, Job, attributes, compile_all, compile_launchers, recurrent, rows
from tests.support.rendering import render_kernel

COLUMNS = {
    "rxc": ("gdn_rxc",) * 2,
    "cpr": ("gdn_cpr",) * 2,
    "native": ("gdn_native_chunk", "gdn_native_step"),
    "recurrent": ("gdn_recurrent_everywhere",) * 2,
    "chunk": ("gdn_chunk_everywhere",) * 2,
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
PARTS = ("packed", "decode")
PEER = "FLA chunk"
SLOW = 5.0  # milliseconds from which few timed calls are enough
LANES = (16, 256, 64)
STEPS = 8


def module(column: str, decoding: bool, qk_heads: int) -> ModuleType:
    return render_kernel(COLUMNS[column][decoding], "sm90", attributes(qk_heads))


def timed(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    ours()
    slow = harness.once(ours) > SLOW
    return harness.paired(harness.graph(ours), peer, rounds=5 if slow else 15)


def training(tokens: int, rule: Callable[..., torch.Tensor]) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Forward and backward of all five inputs; `rule` takes them."""
    inputs = tuple(x.requires_grad_() for x in rows(tokens, 32).values())
    grad = torch.randn(inputs[2].shape, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).bfloat16()
    return lambda: torch.autograd.grad(rule(*inputs), inputs, grad)


def prefill(tokens: int, kernel: ModuleType) -> Callable[[], torch.Tensor]:
    slots, cu = torch.ones(1, dtype=torch.int32, device="cuda"), whole(tokens)
    state = kernel.new_caches(2, "cuda")
    return partial(kernel.gated_delta_extend, **rows(tokens, 32), cu_seqlens=cu, state=state, slots=slots)


def whole(tokens: int) -> torch.Tensor:
    return torch.tensor([0, tokens], dtype=torch.int32, device="cuda")


def native_rule(*inputs: torch.Tensor, final: bool = False) -> torch.Tensor:
    return fla_chunk()(*(x[None] for x in inputs), output_final_state=final)[0][0]


def packed() -> Iterator[harness.Row]:
    sizes = (8192, 16384)
    native = {("train", n): training(n, native_rule) for n in sizes}
    native |= {("prefill", n): partial(native_rule, *rows(n, 32).values(), final=True) for n in sizes}
    peers = {case: harness.graph(call) for case, call in native.items()}
    for column in COLUMNS:
        kernel = module(column, False, 32)
        for (kind, tokens), peer in peers.items():
            rule = partial(kernel.gated_delta_rule, cu_seqlens=whole(tokens))
            call = training(tokens, rule) if kind == "train" else prefill(tokens, kernel)
            if column == "rxc" and kind == "train":
                apart = zip(native[kind, tokens](), call(), strict=True)
                errors = [f"{float((a - b).float().norm() / b.float().norm()):.1e}" for a, b in apart]
                print(f"gradients of q, k, v, g, beta, peer's from ours: {errors}", flush=True)
            floor = forward_floor(tokens, 32) * (3 if kind == "train" else 1)
            yield row(column, kind, f"T={tokens}", timed(call, peer), PEER, floor)


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
        for column in COLUMNS if kind == "decode" else ("rxc", "cpr"):
            ours, theirs = timed(steps(module(column, True, 16), positions), peer)
            times, name = (ours / STEPS, theirs / STEPS), f"fp32 step {chosen}"
            yield row(column, f"{kind} B={lanes}", "", times, name, decode_floor(lanes, 16))


def row(column: str, kind: str, size: str, times: tuple[float, float], peer: str, floor: float) -> harness.Row:
    name = f"{column} {kind} {size}".strip()
    return harness.row(name, times[0], peer, times[1], floor, GOALS.get((column, kind), ""))


def kernels_of(parts: tuple[str, ...]) -> list[Job]:
    """What `compile_launchers` has to compile of ours."""
    jobs: list[Job] = []
    for prefilling, decoding in COLUMNS.values():
        if "packed" in parts:
            jobs += [(prefilling, 32, {}, {name: 8192}) for name in ("gated_delta_rule", "gated_delta_extend")]
        if "decode" in parts:
            jobs += [(decoding, 16, {}, {"gated_delta_step": lanes}) for lanes in LANES]
    if "decode" in parts:
        for launch in RECURRENT:
            chosen = dict(zip(("recurrent_block_v", "recurrent_warps"), launch, strict=True))
            jobs.append(("gdn_native_step", 16, chosen, {"gated_delta_step": LANES[0]}))
    return jobs


def peer_once() -> None:
    training(512, partial(native_rule, final=True))()


def take(name: str, part: Iterator[harness.Row], found: list[harness.Row]) -> None:
    try:
        for line in part:
            print(*line.values(), flush=True)
            found.append(line)
            harness.write(name, found)
    except Exception as error:  # a peer that does not run must not cost the other rows
        print(f"{type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, help="a part; both without it")
    only, begun = parser.parse_args().only, time.monotonic()
    parts = (only,) if only else PARTS
    tuning = compile_candidates(peer_once, os.cpu_count() or 2) if "packed" in parts else []
    compile_all(compile_launchers, kernels_of(parts))
    print(f"ours compiled after {time.monotonic() - begun:.0f} s", flush=True)
    for process in tuning:
        process.join(60)
    if tuning:
        print(f"peer compiled after {time.monotonic() - begun:.0f} s", flush=True)
    if "decode" in parts:
        found: list[harness.Row] = []
        for lanes in LANES:
            take("gdn_decode", decode(lanes), found)
    if "packed" in parts:
        measure_briefly()
        take("gdn_packed", packed(), [])


if __name__ == "__main__":
    main()
