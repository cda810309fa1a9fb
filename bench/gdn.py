"""Gated delta rule against native kernels: `python -m bench.gdn [--quick]`, in CUDA graphs, paired in one process.

Peers: flash-linear-attention's chunk kernels for the forward and the backward, and for decode our own fp32 recurrent
step at the best of its launches (a stronger peer than FLA's launch of its step). `--sweep` times every free launch
and compares its bits with the first.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch

from bench import harness
from bench.gdn_cases import RECURRENT, SCANS, STEPS, compile_all, compile_one, recurrent, rows, rxc, same
from bench.gdn_laws import accuracy, laws, repeats

COPIED_BYTES_PER_MS = 4.3e9


def fla_chunk() -> Callable[..., Any] | None:
    try:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except Exception as error:
        print(f"no FLA: {type(error).__name__}: {error}")
        return None
    return chunk_gated_delta_rule


def forward_floor(tokens: int, qk_heads: int) -> float:
    """q, k, v, o, g, beta read or written once."""
    return tokens * (2 * qk_heads * 256 + 2 * 32 * 256 + 32 * 8) / COPIED_BYTES_PER_MS


def decode_floor(lanes: int, qk_heads: int) -> float:
    """Mean bytes of a step: snapshot, half of K, R and D, a 64th of the state update, row in and out."""
    head = 32768 + 8192 + 8192 * qk_heads / 32 + 2048 + 256 + (131072 + 32768) / 64 + 2048
    return lanes * 32 * head / COPIED_BYTES_PER_MS


def alone(tokens: int) -> None:
    """Print our forward at every launch, its parts and the backward, without a peer; bits against the first launch."""
    given = rows(tokens, 32)
    cu = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")

    def time(run: Callable[[], object]) -> float:
        replay = harness.graph(run)
        return sorted(harness.once(replay) for _ in range(11))[5]

    expected = None
    for launch in SCANS:
        module = rxc(32, scan=launch)
        try:
            out = module.gated_delta_rule(**given, cu_seqlens=cu)
            expected = out if expected is None else expected
            differing = sum(same(module.gated_delta_rule(**given, cu_seqlens=cu), expected) for _ in range(5))
            found = time(lambda m=module: m.gated_delta_rule(**given, cu_seqlens=cu))
        except Exception as error:
            print(f"scan {launch}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        print(f"forward T={tokens} {launch}: {found:.4f} ms, {differing} differing", flush=True)
    module = rxc(32)
    inputs = [given[name] for name in ("q", "k", "g", "beta")]
    prepared = module.prepare(*inputs, cu)
    print(f"prepare T={tokens}: {time(lambda: module.prepare(*inputs, cu)):.4f} ms", flush=True)
    backward = sys.modules[module.DeltaRule.__module__]
    print(f"  forward: {kernels(lambda: module.gated_delta_rule(**given, cu_seqlens=cu))}", flush=True)
    grad = torch.randn_like(given["v"])
    rest = (given["q"], given["k"], given["v"], cu, prepared, grad, 128**-0.5)
    print(f"backward T={tokens}: {time(lambda: backward.gradients(*rest)):.4f} ms", flush=True)
    print(f"  backward: {kernels(lambda: backward.gradients(*rest))}", flush=True)
    trace = (given["q"], given["k"], given["v"], prepared, cu, 128**-0.5, backward.SCAN)
    print(f"  its scan: {time(lambda: module.scan(*trace, trace=True, out=False)):.4f} ms", flush=True)
    passes = [backward.gradients(*rest) for _ in range(3)]
    differing = sum(same(a, b) for found in passes[1:] for a, b in zip(found, passes[0], strict=True))
    print(f"  repeats differ in {differing}", flush=True)


def kernels(run: Callable[[], object]) -> str:
    """Device microseconds of every kernel of one call, longest first."""
    run()
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        run()
        torch.cuda.synchronize()
    spent = {event.key: event.device_time_total for event in profile.key_averages()}
    return ", ".join(f"{name} {time:.0f}" for name, time in sorted(spent.items(), key=lambda item: -item[1])[:12])


def forward(tokens: int, fla: Callable[..., Any]) -> Iterator[harness.Row]:
    """Forward, and forward with backward, against FLA."""
    given = rows(tokens, 32)
    cu = torch.tensor([0, tokens], dtype=torch.int32, device="cuda")
    module, grad = rxc(32), torch.randn_like(given["v"])
    with torch.no_grad():
        peer = harness.graph(lambda: fla(**{n: x[None] for n, x in given.items()}))
        run = harness.graph(lambda: module.gated_delta_rule(**given, cu_seqlens=cu))
        times = harness.paired(run, peer, rounds=15)
    yield harness.row(f"rxc forward T={tokens}", times[0], "FLA chunk", times[1], forward_floor(tokens, 32), "<=0.88")
    inputs = tuple(x.requires_grad_() for x in given.values())
    ours = harness.graph(lambda: torch.autograd.grad(module.gated_delta_rule(*inputs, cu), inputs, grad))
    theirs = harness.graph(lambda: torch.autograd.grad(fla(*(x[None] for x in inputs))[0][0], inputs, grad))
    times, floor = harness.paired(ours, theirs, rounds=15), 3 * forward_floor(tokens, 32)
    yield harness.row(f"rxc forward+backward T={tokens}", times[0], "FLA chunk", times[1], floor, "<=0.92")


def decode(
    lanes: int, steps: tuple[tuple[int, int], ...], natives: tuple[tuple[int, int], ...], qk_heads: int
) -> Iterator[harness.Row]:
    """Eight consecutive steps of lanes spread over the chunk, and steps with all lanes at one place of it, against the
    best native."""
    given = rows(lanes, qk_heads)
    slots = torch.randperm(lanes, device="cuda").int() + 1
    spread = torch.arange(lanes, device="cuda").int() * 64 // lanes + 128

    def replay(module: ModuleType, state: Any, positions: list[torch.Tensor]) -> Callable[[], None]:
        step = partial(module.gated_delta_step, **given, state=state, slots=slots)
        return harness.graph(lambda: [step(positions=p) for p in positions])

    places = {"spread": [spread + j for j in range(8)]}
    places |= {f"t={t}": [spread * 0 + 128 + t] * 8 for t in (0, 62, 63)}
    native = []
    for launch in natives:
        module = recurrent(qk_heads, launch)
        run = replay(module, module.new_caches(lanes + 1, "cuda").zero_(), places["spread"])
        native.append((sorted(harness.once(run) for _ in range(9))[4] / 8, launch, run))
    _, chosen, peer = min(native, key=lambda found: found[0])
    print(f"tuned recurrent step B={lanes}: {[(launch, round(time, 5)) for time, launch, _ in native]}", flush=True)
    state = rxc(qk_heads).new_caches(lanes + 1, "cuda")
    for cache in state:
        cache.normal_().mul_(0.05)
    step = partial(rxc(qk_heads).gated_delta_step, **given, state=state, slots=slots, positions=places["spread"][0])
    print(f"  step: {kernels(step)}", flush=True)
    for launch in steps:
        for label, positions in places.items() if launch == steps[0] else (("spread", places["spread"]),):
            times = harness.paired(replay(rxc(qk_heads, step=launch), state, positions), peer, rounds=15)
            goal = {16: "<=0.95", 256: "<=0.75"}.get(lanes, "") if label == "spread" else ""
            name, floor = f"rxc step B={lanes} H={qk_heads} {label} {launch}", decode_floor(lanes, qk_heads)
            yield harness.row(name, times[0] / 8, f"tuned fp32 step {chosen}", times[1] / 8, floor, goal)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one size of each, nothing saved to the results")
    parser.add_argument("--sweep", action="store_true", help="every free launch")
    parser.add_argument("--laws", action="store_true", help="bit laws and accuracy only")
    options = parser.parse_args()
    steps = STEPS if options.sweep else STEPS[:2]
    jobs: list[tuple[str, int, Any]] = [("scan", h, launch) for h in (16, 32) for launch in SCANS]
    jobs += [("step", 16, launch) for launch in steps] + [("recurrent", 16, launch) for launch in RECURRENT]
    compile_all(compile_one, jobs)
    found: list[harness.Row] = []

    def take(rows_found: Iterator[harness.Row]) -> None:
        for row in rows_found:
            print(*row.values(), flush=True)
            found.append(row)

    with torch.no_grad():
        for line in (*laws(rxc(16)), *repeats(rxc(16)), *accuracy(rxc(16), None)):
            print(line, flush=True)
        if options.laws:
            return
        for lanes in (16, 256) if options.quick else (16, 64, 256):
            take(decode(lanes, steps, RECURRENT, 16))
        alone(8192)
    fla = fla_chunk()
    if fla is not None:
        with torch.no_grad():
            print(*accuracy(rxc(16), fla), sep="\n", flush=True)
        for tokens in (8192,) if options.quick else (8192, 16384):
            take(forward(tokens, fla))
    if not (options.quick or options.sweep):
        harness.save("gdn", found)


if __name__ == "__main__":
    main()
