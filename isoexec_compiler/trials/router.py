"""Logits of the experts and their choice; the summed axis in another order."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`logits`, and `router` on the same tokens."""
    import torch

    hidden = int(attributes["hidden"])
    x, weight = draw.rows(rows, hidden), draw.weight(int(attributes["experts"]), hidden)
    order = torch.randperm(hidden, generator=draw.generator, device=draw.device)

    def other() -> tuple[torch.Tensor, ...]:
        return x[:, order], weight[:, order]

    return {
        "logits": Call(
            arguments=(x, weight), rows=(0,), truth=lambda: (x.double() @ weight.double().T,), reordered=other
        ),
        "router": Call(arguments=(x, weight), rows=(0,), reordered=other),
    }
