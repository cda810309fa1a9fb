"""Dense products against cuBLAS: `python -m bench.gemm [--quick]`; weights rotate so that L2 is as cold as in a model.

Every variant is compiled first, without the device, in one process a core; then its bits are compared with the first
variant of its case, and its time with cuBLAS's, both in CUDA graphs, in turn. Without --quick it takes the recommended
launches and saves results/dense_gemm.json.
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
SECONDS_PER_GROUP = 45
START = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One product and the ways to launch it, of which the first is the reference for bits.

    A launch is the parameters of one bucket; None is the recommended table.
    """

    implementation: str
    n: int
    k: int
    rows: int
    constants: Values | None = None
    launches: tuple[Values | None, ...] = (None,)
    goal: str = ""

    def module(self, launch: Values | None):
        attributes = {"n": self.n, "k": self.k, "split": "none", "out": "model"}
        table = None if launch is None else ((None, launch),)
        return render_kernel(self.implementation, "sm90", attributes, self.constants, table, tp_sizes=(1,))

    def name(self, launch: Values | None) -> str:
        constants = " ".join(str(value) for value in (self.constants or {}).values())
        label = "" if launch is None else " ".join(str(value) for value in launch.values())
        shape = f"{self.rows}x{self.n}x{self.k}"
        return " ".join(filter(None, (self.implementation.removeprefix("matmul_"), shape, constants, label)))

    def floor(self) -> float:
        moved = 2 * (self.n * self.k + self.rows * self.k + self.rows * self.n)
        return max(moved / COPIED_BYTES_PER_MS, 2 * self.rows * self.n * self.k / OPERATIONS_PER_MS)


def recommended() -> Iterator[Case]:
    """Every size of the table, at the launches that `isoexec init` writes."""
    for n, k in ((6144, 4096), (24576, 4096), (151936, 4096)):
        for rows in (1, 16, 64, 256, 1024, 8192):
            goal = "<= 1.00" if rows <= 64 else "<= 1.05" if rows == 8192 else ""
            if n * rows < 1 << 30:
                yield Case(implementation="matmul_sequential", n=n, k=k, rows=rows, goal=goal)
    for leaves in (8, 2):
        for n, k in ((4096, 4096), (4096, 12288), (2048, 4096)):
            for rows in (1, 16, 64, 256, 1024, 8192):
                goal = {16: "<= 0.95", 8192: "<= 1.15"} if leaves == 8 else {8192: "<= 1.05"}
                constants = {"leaves": leaves, "leaf_dtype": "fp32", "block_k": 64}
                yield Case(
                    implementation="matmul_tree", n=n, k=k, rows=rows, constants=constants, goal=goal.get(rows, "")
                )


def compile_one(job: tuple[Case, Values | None]) -> str | None:
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


def measure(case: Case) -> Iterator[harness.Row]:
    """Rows of one case; a name says when bits differ from the first launch's, or values from cuBLAS's."""
    generator = torch.Generator("cuda").manual_seed(case.n + case.k + case.rows)
    copies = max(2, min(8, 1 + 3 * L2_BYTES // (2 * case.n * case.k)))
    draw = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    weights = [torch.randn(case.n, case.k, **draw) * case.k**-0.5 for _ in range(copies)]
    xs = [torch.randn(case.rows, case.k, **draw) for _ in range(copies)]

    def all_of(product) -> None:
        for x, weight in zip(xs, weights, strict=True):
            product(x, weight)

    replay = harness.graph(lambda: all_of(lambda x, weight: torch.mm(x, weight.T)))
    truth = torch.mm(xs[0], weights[0].T).float()
    expected = None
    for launch in case.launches:
        name = case.name(launch)
        matmul = case.module(launch).matmul
        try:
            found = matmul(xs[0], weights[0])
            ours = harness.graph(lambda matmul=matmul: all_of(matmul))
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            continue
        expected = found if expected is None else expected
        differing = int((found.view(torch.int16) != expected.view(torch.int16)).sum())
        error = float((found.float() - truth).norm() / truth.norm())
        name += f" DIFFERS {differing}" * (differing > 0) + f" WRONG {error:.1e}" * (not error < 1e-2)
        mine, theirs = harness.paired(ours, replay, rounds=15)
        yield harness.row(name, mine / copies, "cuBLAS", theirs / copies, case.floor(), case.goal)


def run(cases: list[Case], file: str | None) -> None:
    """Measure and print, in a process of its own: a kernel that hangs ends with its group."""
    rows = []
    with torch.no_grad():
        for case in cases:
            for found in measure(case):
                print(*found.values(), flush=True)
                rows.append(found)
            torch.cuda.empty_cache()
    if file:
        harness.save(file, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="compare the launches of bench/gemm_sweep.py, save nothing"
    )
    if parser.parse_args().quick:
        from bench.gemm_sweep import GROUPS

        groups = {name: (list(group()), None) for name, group in GROUPS.items()}
    else:
        groups = {"recommended": (list(recommended()), "dense_gemm")}
    jobs = [(case, launch) for cases, _ in groups.values() for case in cases for launch in case.launches]
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # as dry launches set it: what they compile is found again
    context = multiprocessing.get_context("fork")
    with context.Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        reasons = pool.map(compile_one, jobs, chunksize=1)
    for (case, launch), reason in zip(jobs, reasons, strict=True):
        if reason:
            print(f"not compiled: {case.name(launch)}: {reason}", flush=True)
    print(f"{len(jobs)} variants compiled after {time.monotonic() - START:.0f} s", flush=True)
    for name, work in groups.items():
        process = context.Process(target=run, args=work)
        process.start()
        process.join(SECONDS_PER_GROUP)
        if process.is_alive():
            process.kill()
        process.join()
        print(f"{name}: exit {process.exitcode} after {time.monotonic() - START:.0f} s", flush=True)


if __name__ == "__main__":
    main()
