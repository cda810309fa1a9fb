"""Bytes that a rank receives in a forward, layout by layout, against the native ones: `python -m bench.parallel_wire`.

Computed from the plan of each contract with experts. The native columns are the frameworks' own: sums in bf16 in the
library's order, experts' rows in bf16. Reductions are counted at sizes of two shots, routing as uniform; the backward
and what a data-parallel group exchanges are not counted, since no contract changes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import harness
from isoexec_compiler import pipeline
from isoexec_compiler.plan import Kernel, Plan

CONTRACTS = Path(__file__).resolve().parents[1] / "contracts"
SIZES = (1, 2, 4, 8)
BF16, FP32, INT32 = 2, 4, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks of tensor parallelism, owners of experts, whether the sequence is scattered."""

    tp: int
    ep: int = 1
    sp: bool = False

    @property
    def name(self) -> str:
        return f"TP{self.tp} EP{self.ep} SP {'on' if self.sp else 'off'}"

    @property
    def from_others(self) -> float:
        """Of what an exchange among the ranks of tensor parallelism hands to each, the part that others send."""
        return (self.tp - 1) / self.tp


LAYOUTS = tuple(
    Layout(tp=tp, ep=ep, sp=sp) for tp in SIZES for ep in SIZES for sp in ((False, True) if tp > 1 else (False,))
)


def kernels(plan: Plan) -> Iterator[tuple[Kernel, int]]:
    """One kernel for each region, and how often the model holds the region."""
    found = {kernel.region: kernel for kernel in plan.kernels if kernel.target == "sm90"}
    for region, kernel in sorted(found.items()):
        yield kernel, len(plan.document["regions"][region]["layers"]) or 1  # type: ignore[index]


def reduced(columns: int, layout: Layout, part: int, result: int) -> float:
    """A sum over ranks of `columns` a token: an exchange of parts and, unless scattered, a gather of results."""
    return columns * layout.from_others * (part + (0 if layout.sp else result))


def experts(top_k: int, hidden: int, layout: Layout, row: int) -> float:
    """Tokens to the experts and rows back, `row` bytes a value of a row; or nodes of a row summed over the ranks.

    Ours adds the nodes of each of a token's rows before the rows; natively the rows of a rank are added first.
    """
    gathered = 0.0 if layout.sp else hidden * BF16 * layout.from_others
    if layout.ep > 1:
        away = top_k * (layout.ep - 1) / layout.ep / layout.tp
        labels = FP32 + (INT32 if row == FP32 else 0)
        return away * (hidden * (BF16 + row) + labels) + gathered
    before = (hidden * BF16 + top_k * (FP32 + INT32)) * layout.from_others if layout.sp else 0.0
    rows = top_k if row == FP32 else 1
    return before + rows * hidden * row * layout.from_others + gathered


def received(plan: Plan, layout: Layout) -> tuple[float, float]:
    """(ours, native): bytes for each token of the group of tensor parallelism, in one forward of the trainer."""
    ours = native = 0.0
    for kernel, times in kernels(plan):
        of = {name: value for name, value in kernel.attributes.items() if isinstance(value, int)}
        split = kernel.attributes.get("split")
        mine = theirs = 0.0
        if kernel.op == "matmul" and split == "rows":
            mine, theirs = reduced(of["n"], layout, FP32, BF16), reduced(of["n"], layout, BF16, BF16)
        elif kernel.op == "matmul" and split == "columns" and layout.sp:
            mine = theirs = of["k"] * BF16 * layout.from_others
        elif kernel.op == "embedding":
            mine = of["width"] * 2 * BF16 * layout.from_others
            theirs = reduced(of["width"], layout, BF16, BF16)
        elif kernel.op == "log_softmax":
            mine = int(kernel.constants["leaves"]) * FP32 * layout.from_others + FP32 * (layout.tp - 1)
            theirs = 3 * 2 * FP32 * layout.from_others  # the maximum, the sum and the target's logit
        elif kernel.op == "expert_combine":
            mine = experts(of["top_k"], of["hidden"], layout, FP32)
            theirs = experts(of["top_k"], of["hidden"], layout, BF16)
        ours, native = ours + times * mine, native + times * theirs
    return ours, native


def main() -> None:
    rows = []
    for name in ("qwen3_30b_a3b", "qwen3_5_35b_a3b", "tiny_moe"):
        contract, problems = pipeline.load((CONTRACTS / f"{name}.yaml").read_bytes(), name)
        if contract is None:
            raise ValueError(str(problems))
        plan = pipeline.build(contract).plan
        for layout in LAYOUTS[1:]:
            ours, native = received(plan, layout)
            rows.append(
                harness.row(f"{name}, {layout.name}: KiB a token", ours / 1024, "native", native / 1024, None, "")
            )
    harness.save("parallel_wire", rows)


if __name__ == "__main__":
    main()
