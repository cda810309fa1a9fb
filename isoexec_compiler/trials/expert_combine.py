"""Sums over the slots of a token, alone and after the nodes of two ranks."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.expert_combine import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`expert_combine`, and `combine` of two ranks."""
    import torch

    hidden, top_k, weighted = int(attributes["hidden"]), int(attributes["top_k"]), bool(attributes["weighted"])
    parts = draw.rows(2 * rows * top_k, hidden, torch.float32).view(2, rows, top_k, hidden)
    weights = draw.normal(rows, top_k, dtype=torch.float32).softmax(-1)
    one = parts[0].contiguous()
    return {
        "expert_combine": Call(
            arguments=(one, weights),
            rows=(0, 1),
            truth=lambda: (reference(one, weights, weighted=weighted),),
            reordered=lambda: (one.roll(1, 1), weights.roll(1, 1)) if top_k > 2 else (one.roll(1, 0), weights),
        ),
        "combine": Call(
            arguments=(parts, weights),
            truth=lambda: (reference(parts.double().sum(0), weights, weighted=weighted),),
        ),
    }
