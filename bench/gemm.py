# SPDX-License-Identifier: Apache-2.0
"""Dense products against cuBLAS: `python -m bench.gemm [--quick]`; weights rotate so that L2 is as cold as in a model.

Every variant is compiled first, without the device, in one process a core; then its bits are compared with the first
variant of its case, and its time with cuBLAS's, both in CUDA graphs, in turn.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
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


def tile(schedule: str, m: int, n: int, warps: int, stages: int, group: int = 1) -> Values:
    """One launch bucket."""
    return {
        "schedule": schedule,
        "block_m": m,
        "block_n": n,
        "num_warps": warps,
        "num_stages": stages,
        "group": group,
    }


SEQUENTIAL = {"block_k": 64}
TREE = {"leaves": 8, "leaf_dtype": "fp32", "block_k": 64}
PERSISTENT = tile("persistent", 128, 128, 4, 2, 8)


def sweep() -> Iterator[Case]:
    """Cases with many launches each; the persistent ones last, so that a hang loses no other time."""
    few = [(16, 1, 8), (16, 2, 8), (32, 2, 6), (32, 4, 6), (64, 4, 4), (64, 4, 6), (128, 4, 4)]
    some = [(16, 4, 6), (32, 4, 6), (64, 4, 4), (64, 4, 6), (128, 4, 4)]
    for n in (6144, 24576, 151936):
        launches = tuple(tile("tiles", 16, *rest) for rest in few)
        yield Case(implementation="matmul_sequential", n=n, k=4096, rows=16, constants=SEQUENTIAL, launches=launches)
    for n in (6144, 24576):
        launches = tuple(tile("tiles", 64, *rest) for rest in some)
        yield Case(implementation="matmul_sequential", n=n, k=4096, rows=64, constants=SEQUENTIAL, launches=launches)
    wide = (tile("tiles", 128, 128, 8, 4, 8), tile("tiles", 128, 256, 8, 3, 8))
    large = ((6144, 4096), (24576, 4096), (4096, 4096), (4096, 12288))
    for n, k in large[:2]:
        yield Case(implementation="matmul_sequential", n=n, k=k, rows=8192, constants=SEQUENTIAL, launches=wide)
    beside = [("warps", 16, 16, 8, 3), ("warps", 16, 16, 8, 4), ("warps", 16, 32, 8, 2), ("warps", 16, 32, 8, 3)]
    beside += [("warps", 16, 16, 4, 3), ("spread", 16, 32, 4, 5), ("spread", 16, 64, 4, 4), ("spread", 16, 64, 4, 6)]
    beside += [("spread", 16, 128, 4, 4)]
    over = [("spread", 64, 32, 4, 5), ("spread", 64, 64, 4, 4), ("spread", 64, 128, 4, 4), ("warps", 64, 16, 8, 2)]
    deep = [("registers", 64, 128, 8, 4, 8), ("registers", 64, 128, 4, 4, 8), ("registers", 128, 64, 8, 4, 8)]
    outputs = ((4096, 4096), (4096, 12288), (2048, 4096))
    for (n, k), (rows, choices) in product(outputs, ((16, beside), (64, over), (8192, deep))):
        launches = tuple(tile(*choice) for choice in choices)
        yield Case(implementation="matmul_tree", n=n, k=k, rows=rows, constants=TREE, launches=launches)
    for n, k in large:
        pair = (wide[0], PERSISTENT)
        yield Case(implementation="matmul_sequential", n=n, k=k, rows=8192, constants=SEQUENTIAL, launches=pair)
    for leaves, (n, k) in product((2, 8), outputs):
        pair = (tile("registers", 64, 128, 8, 3, 8), PERSISTENT)
        constants = {**TREE, "leaves": leaves}
        yield Case(implementation="matmul_tree", n=n, k=k, rows=8192, constants=constants, launches=pair)


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
        name = f"{case.implementation} {case.rows}x{case.n}x{case.k} {case.constants.get('leaves', '')} {label}"
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
        found_row = harness.row(name, mine / copies, "cuBLAS", theirs / copies, case.floor(), case.goal)
        print(*found_row.values(), flush=True)
        yield found_row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="many launches of few cases, nothing saved to the results")
    parser.parse_args()
    cases = list(sweep())
    jobs = [(case, launch) for case in cases for launch in case.launches]
    with multiprocessing.get_context("fork").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        reasons = pool.map(compile_one, jobs, chunksize=1)
    for (case, launch), reason in zip(jobs, reasons, strict=True):
        if reason:
            print(f"not compiled: {case.implementation} {case.n}x{case.k} {launch}: {reason}", flush=True)
    refused = {id(job[1]) for job, reason in zip(jobs, reasons, strict=True) if reason}
    rows = []
    with torch.no_grad():
        for case in cases:
            signal.alarm(40)
            rows += measure(case, tuple(launch for launch in case.launches if id(launch) not in refused))
            torch.cuda.empty_cache()
    harness.save("dense_gemm_sweep", rows)


if __name__ == "__main__":
    main()
