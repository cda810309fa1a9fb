"""Causal convolutions over whole sequences: a row of the batch is a sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.causal_conv import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call

if TYPE_CHECKING:
    import torch

LENGTH = 9


def filters(attributes: Values, draw: Draw) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The taps of every channel, and the bias or None."""
    channels = int(attributes["channels"])
    return draw.normal(channels, int(attributes["width"])), draw.normal(channels) if attributes["bias"] else None


def _starts(count: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.arange(0, count * LENGTH + 1, LENGTH, dtype=torch.int32, device=device)


def _run(module: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    packed = module.causal_conv(x.flatten(0, 1).contiguous(), weight, bias, _starts(len(x), x.device))
    result: torch.Tensor = packed.view(x.shape)
    return result


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`causal_conv` of `rows` sequences of LENGTH tokens."""
    channels = int(attributes["channels"])
    x = draw.rows(rows * LENGTH, channels).view(rows, LENGTH, channels)
    weight, bias = filters(attributes, draw)

    def truth() -> tuple[torch.Tensor, ...]:
        return (reference(x.flatten(0, 1), weight, bias, _starts(rows, x.device)).view(x.shape),)

    return {"causal_conv": Call(arguments=(x, weight, bias), rows=(0,), truth=truth, run=_run)}
