"""Causal softmax attention of grouped query heads over the keys up to and including each row's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="attention",
    doc="softmax(scale * q k^T) v over keys up to the row's own position; a key head serves a group of query heads.",
    attributes={
        "q_heads": Field(type="int", minimum=1, doc="query heads of the whole layer"),
        "kv_heads": Field(type="int", minimum=1, doc="key and value heads of the whole layer; divides q_heads"),
        "head_dim": Field(type="int", minimum=1, doc="features of one head"),
        "scale": Field(type="float", minimum=0.0, doc="factor on q k^T, usually head_dim ** -0.5"),
        "causal": Field(type="bool", choices=(True,), doc="keys after a row's position are hidden from it"),
    },
    states=("kv_cache",),
)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor, *, scale: float
) -> torch.Tensor:
    """The op in float64. q: [T, q_heads, D]; k, v: [T, kv_heads, D]; cu_seqlens: [B + 1]; returns float64 like q.

    Rows of sequence i are cu_seqlens[i] .. cu_seqlens[i + 1]; rows past the last sequence are zero.
    """
    import torch

    group = q.shape[1] // k.shape[1]
    out = torch.zeros_like(q, dtype=torch.float64)
    for start, end in zip(cu_seqlens.tolist()[:-1], cu_seqlens.tolist()[1:], strict=True):
        query = q[start:end].double().transpose(0, 1)
        key, value = (x[start:end].double().transpose(0, 1).repeat_interleave(group, 0) for x in (k, v))
        hidden = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).triu(1)
        scores = (query @ key.mT * scale).masked_fill(hidden, float("-inf"))
        out[start:end] = (scores.softmax(-1) @ value).transpose(0, 1)
    return out


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[Any, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    dim = int(attributes["head_dim"])
    q = torch.empty(rows, int(attributes["q_heads"]), dim, dtype=dtype, device=device)
    k, v = (torch.empty(rows, int(attributes["kv_heads"]), dim, dtype=dtype, device=device) for _ in range(2))
    starts = torch.empty(2, dtype=torch.int32, device=device)
    caches = tuple(torch.empty(4, 16, int(attributes["kv_heads"]), dim, dtype=dtype, device=device) for _ in range(2))
    table, lengths = (torch.empty(shape, dtype=torch.int32, device=device) for shape in ((1, 4), (1,)))
    return {"attention": (q, k, v, starts), "paged_attention": (q, *caches, table, starts, lengths, rows)}
