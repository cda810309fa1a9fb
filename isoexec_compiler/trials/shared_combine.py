"""The routed experts' sum and the gated shared expert."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.shared_combine import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`shared_combine`."""
    import torch

    hidden = int(attributes["hidden"])
    routed, shared = draw.rows(rows, hidden), draw.rows(rows, hidden)
    gate = draw.normal(rows, dtype=torch.float32).sigmoid()
    call = Call(arguments=(routed, shared, gate), rows=(0, 1, 2), truth=lambda: (reference(routed, shared, gate),))
    return {"shared_combine": call}
