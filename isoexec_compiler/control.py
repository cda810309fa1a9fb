"""Negative controls: a comparison that never fails shows nothing, so every law is seen to fail once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding
from isoexec_compiler.subject import Subject, outputs_differing
from isoexec_compiler.trial import Call

if TYPE_CHECKING:
    import torch


def wrong_order(subject: Subject, finding: Finding, name: str, call: Call, result: tuple[torch.Tensor, ...]) -> None:
    """Compare a result with the same sums in another order; where no sum shows that, with each row's neighbour."""
    differing, wrong = 0, "the same sums in another order"
    if call.reordered is not None:
        other = subject.run(name, call, call.reordered())
        differing = outputs_differing(tuple(call.restored(out) for out in other), result)
    if not differing:
        differing, wrong = outputs_differing(tuple(out.roll(1, 0) for out in result), result), "the neighbouring row"
    if wrong not in finding.control:
        finding.control = f"{finding.control}; {wrong}" if finding.control else wrong
    finding.control_differing += differing
