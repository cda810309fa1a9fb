"""Attention over its free launch parameters: times, and whether any of them moves a bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, product
from typing import Any

from bench.attention_cases import QWEN3_5, QWEN3_8B, SMALL, Case, module
from bench.harness import graph, once
from tests.support.ahead import compile_ahead


def variants(kind: str) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The launch parameters worth trying for prefill or for decode."""
    names = ("schedule", "block_m", "num_warps", "num_stages", "programs")
    if kind == "paged":
        values = chain(
            product(("warp_specialised",), (64,), (4,), (2, 3, 4, 6), (0, 132, 264, 396, 528)),
            product(("tiles",), (16,), (4,), (3, 4), (0, 264, 528)),
        )
    else:
        values = chain(
            product(("warp_specialised",), (128,), (4,), (2, 3, 4, 6), (0,)),
            product(("tiles",), (128,), (8,), (2, 3), (0,)),
        )
    for chosen in values:
        yield tuple(zip(names, chosen, strict=True))


def tune() -> None:
    """Times of every variant, and whether its bits are those of the first."""
    import torch

    from tests.support.bits import differing

    places = [("prefill", shape, (4096,)) for shape in (QWEN3_8B, SMALL, QWEN3_5)]
    places += [("paged", QWEN3_8B, (b, 1, n)) for b, n in ((16, 2048), (64, 4096), (16, 16384))]
    places += [("paged", shape, (32, 1, 8192)) for shape in (SMALL, QWEN3_5)]
    cases = [
        [Case(kind=kind, shape=shape, lengths=lengths, launch=launch) for launch in variants(kind)]
        for kind, shape, lengths in places
    ]
    for case in (case for group in cases for case in group):
        module(case.shape, case.launch)
    compile_ahead([case.compiled for group in cases for case in group])
    for group in cases:
        print(group[0].kind, group[0].shape, group[0].lengths, flush=True)
        inputs, first, found = group[0].inputs("cuda"), None, []
        for case in group:
            try:
                call = case.call(inputs)
                out = call()
                first = out if first is None else first
                moved = differing(first, out)
                run = graph(call, 5) if case.kind == "paged" else call
                times = sorted(once(run) for _ in range(7))
            except Exception as error:  # out of shared memory, say: that is a result of the sweep
                print("  ", dict(case.launch or ()), type(error).__name__, str(error)[:100])
                torch.cuda.synchronize()
                continue
            found.append((times[3] / (5 if case.kind == "paged" else 1), moved, dict(case.launch or ())))
        for milliseconds, moved, launch in sorted(found, key=lambda item: item[0])[:12]:
            print(f"  {milliseconds:.4f} ms, {moved} bits moved, {launch}")
        print(f"  {len(found)} variants, {sum(moved > 0 for _, moved, _ in found)} moved bits", flush=True)
