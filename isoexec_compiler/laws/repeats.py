"""A kernel gives one pattern of bits, however often it runs, and writes every element of its outputs."""

from __future__ import annotations

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law, always
from isoexec_compiler.subject import Subject, outputs_differing

REPEATS, QUICK = 100, 5
SIZES = (1, 17, 65, 257)


def _examine(subject: Subject) -> Finding:
    finding, known = Finding(), subject.rows()
    done: dict[str, dict[str, int]] = {}
    for rows in (size for size in SIZES if size in known):
        draw = subject.draw(rows)
        for name, call in subject.calls(rows, draw).items():
            first = subject.run(name, call)
            if rows > 1:
                control.wrong_order(subject, finding, name, call, first)
            for repeat in range(QUICK if subject.quick else REPEATS):
                if subject.late() and repeat:
                    break
                finding.differing += outputs_differing(subject.run(name, call), first)
                finding.compared += sum(out.numel() for out in first)
                done.setdefault(name, {})[str(rows)] = repeat + 1
        if rows > 1:
            finding.fired += draw.fired
    finding.domain = {"repeats by rows": done, "outputs": "NaN before each"}
    return finding


LAW = Law(
    name="repeats",
    doc="A hundred runs into outputs full of NaN give one pattern of bits.",
    backs=("kernel", "tolerance"),
    applies=always,
    examine=_examine,
)
