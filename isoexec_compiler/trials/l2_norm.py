"""Heads scaled to unit length; a head in another order."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.l2_norm import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call

HEADS = 8


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`l2_norm` of HEADS heads."""
    import torch

    width, eps = int(attributes["width"]), float(attributes["eps"])
    x = draw.rows(rows, HEADS * width).view(rows, HEADS, width)
    order = torch.randperm(width, generator=draw.generator, device=draw.device)
    call = Call(
        arguments=(x,),
        rows=(0,),
        truth=lambda: (reference(x, eps=eps),),
        reordered=lambda: (x[..., order],),
        restored=lambda out: out[..., order.argsort()],
    )
    return {"l2_norm": call}
