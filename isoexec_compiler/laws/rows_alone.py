"""A row has its bits whatever rows are computed with it, wherever it stands among them."""

from __future__ import annotations

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law, always
from isoexec_compiler.subject import Subject, outputs_differing


def _examine(subject: Subject) -> Finding:
    finding, sizes = Finding(), subject.rows()
    draw = subject.draw()
    total = sizes[-1]
    done: dict[str, list[int]] = {}
    for name, call in subject.calls(total, draw).items():
        if not call.rows:
            continue
        whole = subject.run(name, call)
        control.wrong_order(subject, finding, name, call, whole)
        for count in sizes:
            if subject.late() and count > 2:
                break
            done.setdefault(name, []).append(count)
            row = total // 2
            for first in {
                min(max(0, row - before), total - count) for before in (row, 0, count // 2, count - 1, -total)
            }:
                expected = tuple(out[first : first + count] for out in whole)
                finding.differing += outputs_differing(subject.run(name, call, call.take(first, count)), expected)
                finding.compared += sum(out.numel() for out in expected)
    finding.fired += draw.fired
    finding.domain = {"rows": done, "places": "first, middle and last of the batch"}
    return finding


LAW = Law(
    name="rows_alone",
    doc="A row alone has the bits that it has at the first, a middle and the last place of a batch of any size.",
    backs=("kernel", "sp", "tolerance"),
    applies=always,
    examine=_examine,
)
