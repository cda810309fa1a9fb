"""The gates of the gated delta rule; value heads on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.gdn_gates import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`gdn_gates`."""
    import torch

    heads = int(attributes["v_heads"])
    a, b = draw.rows(rows, heads), draw.rows(rows, heads)
    a_log, dt_bias = (draw.normal(heads, dtype=torch.float32) for _ in range(2))
    call = Call(arguments=(a, b, a_log, dt_bias), rows=(0, 1), truth=lambda: reference(a, b, a_log, dt_bias))
    return {"gdn_gates": call}


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> tuple[torch.Tensor, ...]:
    """Each rank has its value heads; both results side by side."""
    import torch

    parts = zip(*(x.chunk(size, -1) for x in arguments), strict=True)
    ranks = [module.gdn_gates(*(x.contiguous() for x in part)) for part in parts]
    return tuple(torch.cat(results, 1) for results in zip(*ranks, strict=True))
