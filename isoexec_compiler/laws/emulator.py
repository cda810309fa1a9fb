"""The cpu kernel has the bits of the GPU kernel, where its implementation says so."""

from __future__ import annotations

from typing import Any

from isoexec_compiler.bits import one_nan
from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.registry import implementations
from isoexec_compiler.subject import Subject, outputs_differing

SIZES = (1, 17, 65)


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return kernel.target != "cpu" and "cpu" in plan.targets and bool(implementations()[kernel.implementation].emulated)


def _examine(subject: Subject) -> Finding:
    finding, names = Finding(), implementations()[subject.kernel.implementation].emulated
    for rows in SIZES:
        draw = subject.draw(rows, device="cpu")
        for name, call in subject.calls(rows, draw).items():
            if name not in names:
                continue
            emulated = subject.run(name, call, module=subject.modules["cpu"])
            found = subject.run(name, call, tuple(map(_moved, call.arguments)))
            pairs = tuple(one_nan(out.cpu()) for out in found), tuple(map(one_nan, emulated))
            finding.differing += outputs_differing(*pairs)
            finding.compared += sum(out.numel() for out in emulated)
            if rows > 1:
                finding.control = "the neighbouring row"
                finding.control_differing += outputs_differing(tuple(out.roll(1, 0) for out in pairs[0]), pairs[1])
        if rows > 1:
            finding.fired += draw.fired
    finding.domain = {"rows": list(SIZES), "functions": list(names)}
    return finding


def _moved(argument: Any) -> Any:
    return argument.cuda() if hasattr(argument, "cuda") else argument


LAW = Law(
    name="emulator",
    doc="The cpu kernel and the GPU kernel give the same bits (equal NaNs counted as equal).",
    backs=("kernel",),
    applies=_applies,
    examine=_examine,
)
