"""Peers that tune themselves: their candidates compiled in parallel processes, so that tuning only measures."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable
from typing import Any

SHARED_MEMORY = 232448  # bytes that a Hopper program can have


def compile_candidates(call: Callable[[], object], processes: int) -> list[multiprocessing.process.BaseProcess]:
    """Processes, started, that fill Triton's cache with every candidate of every kernel that `call` tunes: each
    compiles its share and measures nothing. `call` is a function of a module, and runs the peer once on the device."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=_share, args=(rank, processes, call)) for rank in range(processes)]
    for process in started:
        process.start()
    return started


def _share(rank: int, processes: int, call: Callable[[], object]) -> None:
    os.environ["FLA_CACHE_RESULTS"] = "0"
    from triton.runtime.autotuner import Autotuner

    numbers = itertools.count()

    def compile_only(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        if next(numbers) % processes != rank:
            return [1.0]
        kernel = self.fn.run(*args, **{**meta, **config.all_kwargs(), "warmup": True})
        return [0.0 if kernel.metadata.shared <= SHARED_MEMORY else 2.0]

    Autotuner._bench = compile_only
    call()


def measure_briefly() -> None:
    """Let tuning measure each candidate for 20 ms in place of 100."""
    import triton.testing

    patient = triton.testing.do_bench
    triton.testing.do_bench = lambda call, quantiles: patient(call, warmup=5, rep=20, quantiles=quantiles)
