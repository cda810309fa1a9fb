"""Attention of packed sequences and of one-row sequences against a paged cache; heads on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.attention import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch

PAGE, PAGES, POOL = 16, 17, 1024


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`attention` of `rows` tokens in three sequences, one of them empty; `paged_attention` of `rows` single rows.

    The cached sequences are up to PAGES pages long and share a pool of POOL pages, as common prefixes do.
    """
    import torch

    dim, heads, groups = (int(attributes[name]) for name in ("head_dim", "q_heads", "kv_heads"))
    fused = draw.normal(rows, heads + 2 * groups, dim)
    q, k, v = fused.split((heads, groups, groups), 1)
    bounds = torch.tensor([0, rows // 3, rows // 3, rows], dtype=torch.int32, device=draw.device)
    cache = draw.normal(POOL, 2, PAGE, groups, dim)
    table = draw.integers(rows, PAGES, below=POOL, dtype=torch.int32)
    lengths = 1 + draw.integers(rows, below=PAGES * PAGE, dtype=torch.int32)

    def starts(count: int) -> torch.Tensor:
        return torch.arange(count + 1, dtype=torch.int32, device=draw.device)

    paged = (q, cache[:, 0], cache[:, 1], table, starts(rows), lengths, 1)
    scale = float(attributes["scale"])
    return {
        "attention": Call(
            arguments=(q, k, v, bounds),
            truth=lambda: (reference(q, k, v, bounds, scale=scale),),
            bound=2**-7,
        ),
        "paged_attention": Call(
            arguments=paged,
            rows=(0, 3, 5),
            counted={4: starts},
        ),
    }


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """Each rank has its query heads and the key heads that serve them."""
    import torch

    q, k, v, *rest = arguments
    groups = k.shape[-2]
    share = max(1, groups // size)
    parts = []
    for rank, heads in enumerate(q.chunk(size, 1)):
        first = rank * groups // size
        parts.append(getattr(module, name)(heads, *(x[..., first : first + share, :] for x in (k, v)), *rest))
    return torch.cat(parts, 1)
