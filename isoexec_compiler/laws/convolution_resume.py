"""The causal convolution of a whole sequence, of chunks that resume, and of single steps is one function of a row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject, outputs_differing
from isoexec_compiler.trials.causal_conv import filters

if TYPE_CHECKING:
    import torch

LENGTH = 40
CUTS = ((0, 1, 2, 3, 4, 9, 40), (0, 17, 40), tuple(range(LENGTH + 1)))


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return kernel.op == "causal_conv"


def _examine(subject: Subject) -> Finding:
    finding, draw = Finding(), subject.draw()
    x = draw.rows(LENGTH, int(subject.kernel.attributes["channels"]))
    weight, bias = filters(subject.kernel.attributes, draw)
    whole = subject.module.causal_conv(x, weight, bias, _integers(subject, 0, LENGTH))
    for cuts in CUTS:
        found = _resumed(subject, x, weight, bias, cuts)
        finding.differing += outputs_differing((found,), (whole,))
        finding.compared += whole.numel()
        finding.fired["resumes"] += len(cuts) - 2
    alone = [_resumed(subject, rows, weight, bias, (0, len(rows))) for rows in x.split(LENGTH // 2)]
    finding.control_differing = outputs_differing((alone[1],), (whole[LENGTH // 2 :],))
    finding.control = "a second half that forgets the first"
    finding.domain = {"length": LENGTH, "cuts": [list(cuts) for cuts in CUTS]}
    return finding


def _resumed(
    subject: Subject, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cuts: tuple[int, ...]
) -> torch.Tensor:
    """The rows of one sequence from cut to cut, single rows by the step."""
    import torch

    state = x.new_full((2, weight.shape[1] - 1, x.shape[1]), float("nan"))
    parts, slot = [], _integers(subject, 1)
    for begin, end in pairwise(cuts):
        held = state, slot, _integers(subject, begin)
        if end - begin == 1:
            parts.append(subject.module.causal_conv_step(x[begin:end], weight, bias, *held))
        else:
            starts = _integers(subject, 0, end - begin)
            parts.append(subject.module.causal_conv_extend(x[begin:end], weight, bias, starts, *held))
    return torch.cat(parts)


def _integers(subject: Subject, *values: int) -> torch.Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32, device=subject.device)


LAW = Law(
    name="convolution_resume",
    doc="A sequence at once, in chunks that resume at any token, and in single steps gives the same bits.",
    backs=("state", "equal_bits", "tolerance"),
    applies=_applies,
    examine=_examine,
)
