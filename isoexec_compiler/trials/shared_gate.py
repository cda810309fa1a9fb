"""The gate of the shared expert; the summed axis in another order."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.shared_gate import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`shared_gate`."""
    import torch

    hidden = int(attributes["hidden"])
    x, weight = draw.rows(rows, hidden), draw.weight(1, hidden)
    order = torch.randperm(hidden, generator=draw.generator, device=draw.device)
    call = Call(
        arguments=(x, weight),
        rows=(0,),
        truth=lambda: (reference(x, weight),),
        reordered=lambda: (x[:, order], weight[:, order]),
    )
    return {"shared_gate": call}
