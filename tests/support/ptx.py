"""Triton kernels compiled for Hopper without a GPU, with the specialisation a real launch would have; and PTX scans."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

from isoexec_compiler.toolchain import Variant, dry_launches

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


def compiled_launches() -> AbstractContextManager[list[Variant]]:
    """A context in which every Triton launch is compiled for Hopper instead of run; it gives the list it fills."""
    return dry_launches(90)


def offences(ptx: str, allowed: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Names of the banned instruction kinds (keys of `BANNED`) that `ptx` holds and `allowed` does not excuse."""
    return tuple(name for name, pattern in BANNED.items() if name not in allowed and re.search(pattern, ptx))


def operand_widths(ttgir: str) -> tuple[int, ...]:
    """Every kWidth of the dot operands in `ttgir`: for tf32 dots it decides which k share one instruction."""
    return tuple(sorted({int(width) for width in re.findall(r"kWidth = (\d+)", ttgir)}))
