# SPDX-License-Identifier: Apache-2.0
"""Triton kernels compiled for Hopper without a GPU, with the specialisation a real launch would have; and PTX scans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BANNED = {
    "atomics": r"\b(?:atom|red)\.(?!async)",
    "approximate division": r"\bdiv\.(?:approx|full)",
    "approximate square root": r"\bsqrt\.approx",
    "approximate reciprocal square root": r"\brsqrt\.approx",
    "approximate reciprocal": r"\brcp\.approx",
    "approximate transcendental": r"\b(?:ex2|lg2|sin|cos|tanh)\.approx",
    "flush to zero": r"\.ftz\b",
    "unrounded multiply or add, which ptxas may fuse": r"\b(?:add|sub|mul)\.f(?:32|64)\b",
    "fused multiply-add": r"\bfma\.rn\.f(?:32|64)\b",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compiled variant of a kernel: its name, texts, and bytes of shared memory."""

    name: str
    ptx: str
    ttgir: str
    shared: int


class _Hopper:
    """What Triton asks of a driver before it compiles; nothing is ever launched through it."""

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 1 << 20  # no real device: its cache of compiled kernels stays apart

    def get_current_stream(self, device: int) -> int:
        return 0


@contextmanager
def compiled_launches() -> Iterator[list[Compiled]]:
    """A context in which every Triton launch is compiled for cuda:90 instead of run; yields the list it fills.

    Launchers may be called with CPU tensors: only dtypes, strides and alignment matter, outputs stay unwritten.
    """
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    run, active, found = JITFunction.run, driver._active, []

    def compile_only(self: JITFunction, *args: object, grid: object, warmup: bool, **options: object) -> None:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        found.append(
            Compiled(
                name=self.fn.__name__,
                ptx=kernel.asm["ptx"],
                ttgir=kernel.asm["ttgir"],
                shared=kernel.metadata.shared,
            )
        )

    driver.set_active(_Hopper())
    JITFunction.run = compile_only
    try:
        yield found
    finally:
        JITFunction.run = run
        driver._active = active


def offences(ptx: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the banned instruction kinds (keys of `BANNED`) that `ptx` holds and `allowed` does not excuse."""
    return tuple(name for name, pattern in BANNED.items() if name not in allowed and re.search(pattern, ptx))


def operand_widths(ttgir: str) -> tuple[int, ...]:
    """Every kWidth of the dot operands in `ttgir`: for tf32 dots it decides which k share one instruction."""
    return tuple(sorted({int(width) for width in re.findall(r"kWidth = (\d+)", ttgir)}))
