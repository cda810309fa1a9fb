"""Rotary position embedding: the first `rotary_dim` elements of each head turned by position-dependent angles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="rotary",
    doc="Elements i and i + rotary_dim/2 of a head turned by position * theta**(-2i/rotary_dim); the rest unchanged.",
    attributes={
        "head_dim": Field(type="int", minimum=2, multiple_of=2, doc="width of a head"),
        "rotary_dim": Field(type="int", minimum=2, multiple_of=2, doc="elements of a head that are turned"),
        "theta": Field(type="float", minimum=1.0, doc="base of the frequencies"),
        "max_positions": Field(type="int", minimum=1, doc="positions are in [0, max_positions)"),
    },
)


def reference(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, *, rotary_dim: int, theta: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64. q, k: [T, heads of its own, head_dim]; positions: [T] int64; returns both turned."""
    import torch

    half = rotary_dim // 2
    frequencies = theta ** (-2.0 * torch.arange(half, dtype=torch.float64, device=q.device) / rotary_dim)
    angles = (positions.double()[:, None] * frequencies)[:, None, :]

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second, rest = x.double().split((half, half, x.shape[-1] - rotary_dim), dim=-1)
        both = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat((*both, rest), dim=-1)

    return turned(q), turned(k)


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many heads of tokens, a quarter of them keys', for each function of a kernel
    module, by its name."""
    import torch

    tokens, width = max(1, rows // 4), int(attributes["head_dim"])
    q, k = (torch.empty(tokens, heads, width, dtype=dtype, device=device) for heads in (3, 1))
    return {"rotary": (q, k, torch.empty(tokens, dtype=torch.int64, device=device))}
