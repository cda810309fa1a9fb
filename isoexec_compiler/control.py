# SPDX-License-Identifier: Apache-2.0
"""Negative controls: a comparison that never fails shows nothing, so every law is seen to fail once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding
from isoexec_compiler.subject import Subject, outputs_differing
from isoexec_compiler.trial import Call

if TYPE_CHECKING:
    import torch


def wrong_order(subject: Subject, finding: Finding, name: str, call: Call, result: tuple[torch.Tensor, ...]) -> None:
    """Compare a result with the same sums in another order; where nothing is summed, with each row's neighbour."""
    if call.reordered is None:
        finding.control = finding.control or "the neighbouring row"
        finding.control_differing += outputs_differing(tuple(out.roll(1, 0) for out in result), result)
        return
    finding.control = "the same sums in another order"
    other = subject.run(name, call, call.reordered())
    finding.control_differing += outputs_differing(tuple(call.restored(out) for out in other), result)
