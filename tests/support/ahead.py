"""Triton's cache filled before a run on a device: what calls launch is compiled without it, a process for each core."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence

import torch

from tests.support.ptx import compiled_launches

_CALLS: list[Callable[[], object]] = []


def _compile(number: int) -> str | None:
    torch.set_num_threads(1)
    try:
        with compiled_launches():
            _CALLS[number]()
    except Exception as error:  # a call that does not compile must not end the run: the run itself will say more
        return f"call {number} of {len(_CALLS)}: {type(error).__name__}: {str(error)[:300]}"
    return None


def compile_ahead(calls: Sequence[Callable[[], object]]) -> None:
    """Compile the kernels of each call, on CPU tensors, in forked processes; print what failed.

    Processes that start from this one afterwards find the kernels in Triton's cache.
    """
    began = time.monotonic()
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # as in dry launches: it is part of the cache's key
    _CALLS[:] = calls
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        for failure in filter(None, pool.imap_unordered(_compile, range(len(calls)))):
            print(failure, flush=True)
    print(f"compiled {len(calls)} calls ahead in {time.monotonic() - began:.1f} s", flush=True)
