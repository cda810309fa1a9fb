"""Gated norms of heads; a head in another order."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.gated_rms_norm import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call

HEADS = 8


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`gated_rms_norm` of HEADS heads."""
    import torch

    width, eps = int(attributes["width"]), float(attributes["eps"])
    x, gate = (draw.rows(rows, HEADS * width).view(rows, HEADS, width) for _ in range(2))
    weight = draw.normal(width)
    order = torch.randperm(width, generator=draw.generator, device=draw.device)
    call = Call(
        arguments=(x, gate, weight),
        rows=(0, 1),
        truth=lambda: (reference(x, gate, weight, eps=eps),),
        reordered=lambda: (x[..., order], gate[..., order], weight[order]),
        restored=lambda out: out[..., order.argsort()],
    )
    return {"gated_rms_norm": call}
