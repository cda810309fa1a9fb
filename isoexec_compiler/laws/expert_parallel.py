"""Ranks that share the experts compute every row with the bits of one rank that holds them all."""

from __future__ import annotations

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject, outputs_differing, trial_of, tried_by

SIZES = (1, 17, 65, 257, 1024)
FEW = 17
RANKS = (2, 4, 8, 16)


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return tried_by(kernel, "spread")


def _examine(subject: Subject) -> Finding:
    finding, known = Finding(), subject.rows()
    spread = trial_of(subject.kernel).spread
    ranks = [size for size in RANKS if int(subject.kernel.attributes["experts"]) % size == 0]
    done = []
    for rows in (size for size in SIZES if size in known):
        if subject.late() and rows > FEW:
            break
        draw = subject.draw(rows)
        for name, call in subject.calls(rows, draw).items():
            whole = subject.run(name, call)
            for size in ranks:
                together = spread(subject.module, subject.kernel.attributes, name, call.arguments, size)
                finding.differing += outputs_differing((together,), whole)
                finding.compared += together.numel()
            if rows > 1:
                control.wrong_order(subject, finding, name, call, whole)
        if rows > 1:
            finding.fired += draw.fired
        done.append(rows)
    finding.domain = {"ranks": ranks, "rows": done}
    return finding


LAW = Law(
    name="expert_parallel",
    doc="Simulated ranks, each with its share of the experts and the rows routed to them, give the bits of one rank.",
    backs=("ep",),
    applies=_applies,
    examine=_examine,
)
