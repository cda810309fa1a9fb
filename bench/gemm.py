# SPDX-License-Identifier: Apache-2.0
"""Dense products against cuBLAS: `python -m bench.gemm [--quick]`; weights rotate so that L2 is as cold as in a model.

Every variant is compiled first, without the device, in one process a core; then its bits are compared with the first
variant of its case, and its time with cuBLAS's, both in CUDA graphs, in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import torch

from bench import harness
from isoexec_compiler.registry import Values
from tests.support.ptx import compiled_launches
from tests.support.rendering import render_kernel

COPIED_BYTES_PER_MS = 4.3e9
OPERATIONS_PER_MS = 7.9e11
L2_BYTES = 60 << 20
SECONDS_PER_GROUP = 25
START = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One product and the ways to schedule it; the first launch is the reference for bits."""

    implementation: str
    n: int
    k: int
    rows: int
    constants: Values
    launches: tuple[Values, ...]
    goal: str = ""
    out: str = "model"

    def module(self, launch: Values):
        attributes = {"n": self.n, "k": self.k, "split": "none", "out": self.out}
        return render_kernel(self.implementation, "sm90", attributes, self.constants, ((None, launch),), tp_sizes=(1,))

    def floor(self) -> float:
        moved = 2 * (self.n * self.k + self.rows * self.k + self.rows * self.n)
        return max(moved / COPIED_BYTES_PER_MS, 2 * self.rows * self.n * self.k / OPERATIONS_PER_MS)


NAMES = ("schedule", "block_m", "block_n", "num_warps", "num_stages", "group", "share", "overlap")
PERSISTENT = [("persistent", 128, n, 4, 8, 8, 1) for n in (128, 256)]


def sequential(n: int, k: int, rows: int, *launches: tuple, block_k: int = 64) -> Case:
    """A case of `matmul_sequential`; a launch lists the values of `NAMES`."""
    named = tuple({"overlap": True, **dict(zip(NAMES, launch, strict=False))} for launch in launches)
    return Case(implementation="matmul_sequential", n=n, k=k, rows=rows, constants={"block_k": block_k}, launches=named)


def tree(n: int, k: int, rows: int, *launches: tuple, block_k: int = 64, leaves: int = 8) -> Case:
    """A case of `matmul_tree`; a launch lists the values of `NAMES`."""
    named = tuple({"overlap": True, **dict(zip(NAMES, launch, strict=False))} for launch in launches)
    constants = {"leaves": leaves, "leaf_dtype": "fp32", "block_k": block_k}
    return Case(implementation="matmul_tree", n=n, k=k, rows=rows, constants=constants, launches=named)


def tiles(m: int, *shapes: tuple[int, int, int], group: int = 1) -> list[tuple]:
    """Launches of `tiles` with m rows: (outputs, warps, stages) each."""
    return [("tiles", m, n, warps, stages, group) for n, warps, stages in shapes]


def shared(m: int, *shapes: tuple[int, int, int, int]) -> list[tuple]:
    """Launches of `tiles` with m rows and leaves shared out: (share, outputs, warps, stages) each."""
    return [("tiles", m, n, warps, stages, 1, share) for share, n, warps, stages in shapes]


def warps(m: int, *shapes: tuple[int, int, int]) -> list[tuple]:
    """Launches of `warps` with m rows: (outputs, warps, stages) each."""
    return [("warps", m, n, count, stages, 1, 1) for n, count, stages in shapes]


def persistent_group() -> Iterator[Case]:
    """Large products, each with a plain tile as the reference for bits."""
    plain, cut = tiles(128, (256, 8, 3), group=8), ("tiles", 128, 128, 8, 3, 8, 1)
    for n, k in ((4096, 4096), (24576, 4096), (4096, 12288)):
        yield sequential(n, k, 8192, *plain, PERSISTENT[1], ("persistent", 128, 256, 4, 8, 16))
    for n, k in ((4096, 4096), (4096, 12288), (2048, 4096)):
        yield tree(n, k, 8192, cut, PERSISTENT[0], ("persistent", 128, 128, 4, 8, 16, 1), leaves=2)
        yield tree(n, k, 8192, cut, PERSISTENT[0], ("persistent", 128, 128, 4, 8, 16, 1))
        yield tree(n, k, 8192, cut, PERSISTENT[0], leaves=4)
    half = ("persistent", 128, 64, 4, 8, 8, 1)
    for rows in (128, 256, 512, 1024, 2048):
        low = [*PERSISTENT, half, *streamed((64, 13), (32, 16), (64, 8))]
        yield sequential(6144, 4096, rows, *plain, *low)
        yield sequential(24576, 4096, rows, *plain, *low)
        for k in (4096, 12288):
            yield tree(4096, k, rows, *shared(64, (2, 64, 4, 5)), *low[:1], *low[2:])


def streamed(*shapes: tuple[int, int]) -> list[tuple]:
    """Launches of `persistent` with 64 rows: (outputs, stages) each."""
    return [("persistent", 64, n, 4, stages, 1, 1) for n, stages in shapes]


def alone(launches: list[tuple]) -> list[tuple]:
    """The same launches without overlap."""
    return [(*launch, *(1,) * (7 - len(launch)), False) for launch in launches]


def streamed_group() -> Iterator[Case]:
    """Few rows through the warp-specialised kernel."""
    for n, k, rows in ((6144, 4096, 1), (6144, 4096, 16), (24576, 4096, 16), (151936, 4096, 16), (6144, 4096, 32)):
        plain = tiles(16, (32, 2, 8), (64, 4, 4), (32, 2, 6))
        yield sequential(n, k, rows, *plain, *streamed((32, 8), (32, 16), (64, 8), (64, 13), (16, 12)))
    for n, k, rows in ((4096, 4096, 16), (4096, 12288, 16), (2048, 4096, 16), (4096, 4096, 32), (4096, 12288, 32)):
        plain = warps(16, (16, 8, 4), (32, 8, 4), (32, 4, 4), (16, 4, 4))
        yield tree(n, k, rows, *plain, *streamed((16, 12), (16, 16), (32, 8), (32, 16), (64, 10)))
    for n, k in ((4096, 4096), (4096, 12288), (2048, 4096)):
        yield tree(n, k, 64, ("tiles", 64, 64, 4, 4, 1, 1), *streamed((32, 12), (32, 14), (32, 16), (16, 16)))


def compile_one(job: tuple[Case, Values]) -> str | None:
    """Fill Triton's cache; returns the reason when a variant does not compile."""
    case, launch = job
    try:
        x = torch.empty(case.rows, case.k, dtype=torch.bfloat16)
        weight = torch.empty(case.n, case.k, dtype=torch.bfloat16)
        device = SimpleNamespace(multi_processor_count=132)
        with mock.patch("torch.cuda.get_device_properties", return_value=device), compiled_launches():
            case.module(launch).matmul(x, weight)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def measure(case: Case, launches: tuple[Values, ...]) -> Iterator[harness.Row]:
    """Rows of one case, with the number of outputs whose bits differ from the first launch's in the name."""
    generator = torch.Generator("cuda").manual_seed(case.n + case.k + case.rows)
    copies = max(2, min(8, 1 + 3 * L2_BYTES // (2 * case.n * case.k)))
    draw = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    weights = [torch.randn(case.n, case.k, **draw) * case.k**-0.5 for _ in range(copies)]
    xs = [torch.randn(case.rows, case.k, **draw) for _ in range(copies)]

    def peer() -> None:
        for x, weight in zip(xs, weights, strict=True):
            torch.mm(x, weight.T)

    replay = harness.graph(peer)
    expected = None
    for launch in launches:
        matmul = case.module(launch).matmul

        def ours(matmul=matmul) -> None:
            for x, weight in zip(xs, weights, strict=True):
                matmul(x, weight)

        label = " ".join(str(value) for value in launch.values())
        constants = " ".join(str(value) for value in case.constants.values())
        name = f"{case.implementation.removeprefix('matmul_')} {case.rows}x{case.n}x{case.k} {constants} {label}"
        try:
            found = matmul(xs[0], weights[0])
            truth = torch.mm(xs[0], weights[0].T)
            error = float((found.float() - truth.float()).norm() / truth.float().norm())
            expected = found if expected is None else expected
            differing = int((found.view(torch.int16) != expected.view(torch.int16)).sum())
            mine, theirs = harness.paired(harness.graph(ours), replay, rounds=15)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        name += f" DIFFERS {differing}" * (differing > 0) + f" WRONG {error:.1e}" * (not error < 1e-2)
        yield harness.row(name, mine / copies, "cuBLAS", theirs / copies, case.floor(), case.goal)


def run(cases: list[Case], refused: set[int]) -> None:
    """Measure and print, in a process of its own: a kernel that hangs ends with its group."""
    with torch.no_grad():
        for case in cases:
            launches = tuple(launch for launch in case.launches if id(launch) not in refused)
            for found in measure(case, launches):
                print(*found.values(), flush=True)
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="many launches of few cases, nothing saved to the results")
    parser.parse_args()
    found = (persistent_group, streamed_group)
    groups = {group.__name__: list(group()) for group in found}
    jobs = [(case, launch) for cases in groups.values() for case in cases for launch in case.launches]
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        reasons = pool.map(compile_one, jobs, chunksize=1)
    for (case, launch), reason in zip(jobs, reasons, strict=True):
        if reason:
            print(f"not compiled: {case.implementation} {case.n}x{case.k} {launch}: {reason}", flush=True)
    refused = {id(job[1]) for job, reason in zip(jobs, reasons, strict=True) if reason}
    print(f"{len(jobs)} variants compiled after {time.monotonic() - START:.0f} s", flush=True)
    for name, cases in groups.items():
        process = context.Process(target=run, args=(cases, refused))
        process.start()
        process.join(SECONDS_PER_GROUP)
        if process.is_alive():
            process.kill()
        print(f"{name}: exit {process.exitcode} after {time.monotonic() - START:.0f} s", flush=True)


if __name__ == "__main__":
    main()
