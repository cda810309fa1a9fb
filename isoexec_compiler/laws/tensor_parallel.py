"""The ranks of every claimed size compute together the bits of one rank."""

from __future__ import annotations

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject, outputs_differing, trial_of, tried_by

SIZES = (1, 17, 65, 257, 1024)
FEW = 17


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return max(kernel.tp_sizes) > 1 and tried_by(kernel, "sharded") and kernel.attributes.get("split") != "none"


def _examine(subject: Subject) -> Finding:
    finding, known = Finding(), subject.rows()
    sharded = trial_of(subject.kernel).sharded
    done: dict[str, list[int]] = {}
    for rows in (size for size in SIZES if size in known):
        if subject.late() and done and rows > FEW:
            break
        draw = subject.draw(rows)
        for name, call in subject.calls(rows, draw).items():
            whole = subject.run(name, call)
            for size in subject.kernel.tp_sizes:
                together = sharded(subject.module, subject.kernel.attributes, name, call.arguments, size)
                if together is None:
                    break
                found = together if isinstance(together, tuple) else (together,)
                finding.differing += outputs_differing(found, whole)
                finding.compared += sum(out.numel() for out in found)
                done.setdefault(name, [])
                if rows not in done[name]:
                    done[name].append(rows)
            else:
                if rows > 1:
                    control.wrong_order(subject, finding, name, call, whole)
        if rows > 1:
            finding.fired += draw.fired
    finding.domain = {"ranks": list(subject.kernel.tp_sizes), "rows": done}
    return finding


LAW = Law(
    name="tensor_parallel",
    doc="Simulated ranks, each with its share of the operands, give together the bits of one at every claimed size.",
    backs=("tp", "sp"),
    applies=_applies,
    examine=_examine,
)
