"""Products of rows with a weight; the summed axis in another order; columns or leaves on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.matmul import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`matmul`, and `combine` of the nodes of two ranks."""
    import torch

    n, k = int(attributes["n"]), int(attributes["k"])
    x, weight = draw.rows(rows, k), draw.weight(n, k)
    order = torch.randperm(k, generator=draw.generator, device=draw.device)
    found = {
        "matmul": Call(
            arguments=(x, weight),
            rows=(0,),
            truth=lambda: (reference(x, weight),),
            reordered=lambda: (x[:, order], weight[:, order]),
        )
    }
    if attributes["split"] == "rows":
        parts = torch.stack([draw.rows(rows, n, torch.float32) for _ in range(2)])
        found["combine"] = Call(arguments=(parts,), truth=lambda: (parts.double().sum(0),))
    return found


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Columns joined, or nodes combined, of `size` ranks; None for a product that no rank shares."""
    import torch

    if name != "matmul" or attributes["split"] == "none":
        return None
    x, weight = arguments
    if attributes["split"] == "columns":
        return torch.cat([module.matmul(x, part.contiguous()) for part in weight.chunk(size)], 1)
    ranks = zip(x.chunk(size, 1), weight.chunk(size, 1), strict=True)
    nodes = torch.stack([module.partial(left.contiguous(), right.contiguous()) for left, right in ranks])
    result: torch.Tensor = module.combine(nodes)
    return result
