# SPDX-License-Identifier: Apache-2.0
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


def _starts(count: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.arange(0, count * LENGTH + 1, LENGTH, dtype=torch.int32, device=device)


def _run(module: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    packed = module.causal_conv(x.flatten(0, 1).contiguous(), weight, None, _starts(len(x), x.device))
    result: torch.Tensor = packed.view(x.shape)
    return result


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`causal_conv` of `rows` sequences of LENGTH tokens."""
    channels, taps = int(attributes["channels"]), int(attributes["taps"])
    x = draw.rows(rows * LENGTH, channels).view(rows, LENGTH, channels)
    weight = draw.normal(channels, taps)

    def truth() -> tuple[torch.Tensor, ...]:
        return (reference(x.flatten(0, 1), weight, None, _starts(rows, x.device)).view(x.shape),)

    return {"causal_conv": Call(arguments=(x, weight), rows=(0,), truth=truth, run=_run)}
