"""Sizes, launches and modules that the laws of the matrix products share."""

from __future__ import annotations

from itertools import product
from types import ModuleType

from isoexec_compiler.plan import Launch
from isoexec_compiler.registry import Values
from tests.support.rendering import render_kernel
from tests.support.targets import TARGET

IMPLEMENTATIONS = ("matmul_sequential", "matmul_tree")
CONSTANTS = {
    "matmul_sequential": {"block_k": 64},
    "matmul_tree": {"leaves": 8, "leaf_dtype": "fp32", "block_k": 64},
}
SIZES = {"cpu": (64, 512), "interpreter": (32, 512), "sm90": (512, 4096)}
ROWS = {
    "cpu": (1, 2, 15, 17, 33),
    "interpreter": (1, 17),
    "sm90": (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 1024, 8192),
}


def one(
    schedule: str, m: int, n: int, warps: int, stages: int, group: int, share: int = 1, overlap: bool = True
) -> Launch:
    """A launch table of a single bucket."""
    names = ("schedule", "block_m", "block_n", "num_warps", "num_stages", "group", "share", "overlap")
    return ((None, dict(zip(names, (schedule, m, n, warps, stages, group, share, overlap), strict=True))),)


def launches(implementation: str, place: str) -> tuple[Launch, ...]:
    """Free launch parameters over their declared range; only those that a place can run."""
    if place == "cpu":
        return (((None, {}),),)
    shapes = [(16, 16, 1), (32, 64, 4), (64, 64, 4)]
    if place == "sm90":
        shapes += [
            (m, n, 4) for m, n in product((16, 32, 64, 128), (16, 32, 64, 128)) if (m, n) not in ((32, 64), (64, 64))
        ]
        shapes += [(16, 64, 2), (64, 128, 8), (128, 128, 8), (128, 64, 8)]
    found = [one("tiles", m, n, warps, 3, 4, 2) for m, n, warps in shapes]
    if place == "sm90":
        found += [one("tiles", 64, 64, 4, stages, group, 4) for stages, group in ((2, 1), (5, 8), (8, 16))]
        found += [one("tiles", 64, 64, 4, 3, 1, share, share == 1) for share in (1, 8)]
    if implementation == "matmul_tree":
        found += [
            one("warps", m, n, warps, 2, 4) for m, n, warps in ((16, 16, 8), (16, 32, 4), (32, 16, 8), (64, 16, 8))
        ]
    if place == "sm90":
        streamed = ((64, 16, 10), (64, 32, 16), (64, 64, 6), (128, 128, 2), (128, 128, 8), (128, 256, 8))
        shares = (8,) if implementation == "matmul_sequential" else (1, 2, 4, 8)
        found += [
            one("persistent", m, n, 4, stages, 1 + share % 8, share) for share in shares for m, n, stages in streamed
        ]
        if implementation == "matmul_tree":
            halves = ((16, 10), (32, 8), (64, 2), (128, 8))
            found += [one("beside", 16, n, 8, stages, 1, 8) for n, stages in ((16, 16), (32, 2), (32, 4))]
            found += [one("halves", 64, n, 4, stages, group, 8) for n, stages in halves for group in (1, 8)]
        else:
            found += [one("columns", 64, 64, 4, stages, group) for stages, group in ((2, 1), (8, 8))]
    return tuple(found)


def module(
    place: str,
    implementation: str,
    n: int,
    k: int,
    launch: Launch | None = None,
    *,
    out: str = "model",
    dtype: str = "bf16",
    constants: Values | None = None,
) -> ModuleType:
    """The rendered kernel module; constants that are not given are those of `CONSTANTS`.

    A launch that is not given is the recommended table, or in the interpreter, which has no tensor memory accelerator,
    the first of `launches`.
    """
    if launch is None and place == "interpreter":
        launch = launches(implementation, place)[0]
    attributes = {"n": n, "k": k, "split": "rows" if implementation == "matmul_tree" else "columns", "out": out}
    chosen = {**CONSTANTS[implementation], **(constants or {})}
    return render_kernel(implementation, TARGET[place], attributes, chosen, launch, dtype=dtype)
