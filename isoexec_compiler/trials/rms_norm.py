"""Norms of rows, with and without a residual; the row in another order."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.rms_norm import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`rms_norm` and `add_rms_norm`."""
    import torch

    width = int(attributes["width"])
    eps, gamma = float(attributes["eps"]), str(attributes["gamma"])
    x, residual, weight = draw.rows(rows, width), draw.rows(rows, width), draw.normal(width)
    order = torch.randperm(width, generator=draw.generator, device=draw.device)

    def added() -> tuple[torch.Tensor, ...]:
        total = (x.float() + residual.float()).to(x.dtype)
        return reference(total, weight, eps=eps, gamma=gamma), x.double() + residual.double()

    return {
        "rms_norm": Call(
            arguments=(x, weight),
            rows=(0,),
            truth=lambda: (reference(x, weight, eps=eps, gamma=gamma),),
            reordered=lambda: (x[:, order], weight[order]),
            restored=lambda out: out[:, order.argsort()],
        ),
        "add_rms_norm": Call(
            arguments=(x, residual, weight),
            rows=(0, 1),
            truth=added,
            reordered=lambda: (x[:, order], residual[:, order], weight[order]),
            restored=lambda out: out[:, order.argsort()],
        ),
    }
