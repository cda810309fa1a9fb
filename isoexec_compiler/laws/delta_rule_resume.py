"""The gated delta rule of a whole sequence, of chunks that resume, and of single steps is one function of a row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.registry import implementations
from isoexec_compiler.subject import Subject, outputs_differing
from isoexec_compiler.trials.gated_delta_rule import arguments

if TYPE_CHECKING:
    import torch

LENGTHS = (1, 63, 64, 65, 200)
CUTS = (1, 16, 50, 64, 100, 128)
STEPS = 70


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return kernel.op == "gated_delta_rule" and "chunk" in implementations()[kernel.implementation].constants


def _examine(subject: Subject) -> Finding:
    import torch

    finding, draw = Finding(), subject.draw()
    bounds = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    tokens = arguments(subject.kernel.attributes, draw, bounds[-1])
    starts = torch.tensor(bounds, dtype=torch.int32, device=subject.device)
    whole = subject.module.gated_delta_rule(*tokens, starts)
    done: list[int] = []
    for begin, end in pairwise(bounds):
        if subject.late() and len(done) > 1:
            break
        expected, mine = whole[begin:end], tuple(x[begin:end] for x in tokens)
        for cuts in ([0, *(c for c in CUTS if c < end - begin), end - begin], [0, (end - begin) // 2, end - begin]):
            _count(finding, _resumed(subject, mine, cuts), expected)
        _count(finding, _stepped(subject, mine, max(0, end - begin - STEPS)), expected)
        done.append(end - begin)
        finding.fired["rows after a resume"] += end - begin - 1
        changed = (mine[0], mine[1].roll(1, 0), *mine[2:])
        finding.control_differing += outputs_differing((_resumed(subject, changed, [0, end - begin]),), (expected,))
    finding.control = "keys one row late"
    finding.domain = {"lengths": done, "cuts": list(CUTS), "single steps": STEPS}
    return finding


def _count(finding: Finding, found: torch.Tensor, expected: torch.Tensor) -> None:
    finding.differing += outputs_differing((found,), (expected,))
    finding.compared += expected.numel()


def _resumed(subject: Subject, tokens: tuple[torch.Tensor, ...], cuts: list[int]) -> torch.Tensor:
    """The rows of one sequence, extended from cut to cut."""
    import torch

    state, parts = subject.module.new_caches(2, subject.device), []
    for begin, end in pairwise(sorted(set(cuts))):
        whole, slot, position = (_integers(subject, *values) for values in ((0, end - begin), (1,), (begin,)))
        rows = tuple(x[begin:end].contiguous() for x in tokens)
        parts.append(subject.module.gated_delta_extend(*rows, whole, state, slot, position if begin else None))
    return torch.cat(parts)


def _stepped(subject: Subject, tokens: tuple[torch.Tensor, ...], first: int) -> torch.Tensor:
    """The rows of one sequence: those before `first` at once, then one by one."""
    import torch

    state, parts, slot = subject.module.new_caches(2, subject.device), [], _integers(subject, 1)
    if first:
        rows = tuple(x[:first].contiguous() for x in tokens)
        parts.append(subject.module.gated_delta_extend(*rows, _integers(subject, 0, first), state, slot))
    for t in range(first, len(tokens[0])):
        rows = tuple(x[t : t + 1].contiguous() for x in tokens)
        parts.append(subject.module.gated_delta_step(*rows, state, slot, _integers(subject, t)))
    return torch.cat(parts)


def _integers(subject: Subject, *values: int) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32, device=subject.device)


LAW = Law(
    name="delta_rule_resume",
    doc="A sequence at once, in chunks that resume at any token, and in single steps gives the same bits.",
    backs=("state", "equal_bits", "tolerance"),
    applies=_applies,
    examine=_examine,
)
