# SPDX-License-Identifier: Apache-2.0
"""The two gates of the gated delta rule: the logarithm of its decay, and how much is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="gdn_gates",
    doc="g = -exp(a_log) * log(1 + exp(a + dt_bias)) and beta = 1 / (1 + exp(-b)), in fp32, one of each a value head.",
    attributes={"heads": Field(type="int", minimum=1, doc="value heads")},
)


def reference(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64. a, b: [T, heads]; a_log, dt_bias: [heads]; returns g and beta, [T, heads]."""
    import torch

    steps = torch.nn.functional.softplus(a.double() + dt_bias.double(), threshold=1000.0)
    return -a_log.double().exp() * steps, b.double().sigmoid()


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    heads = int(attributes["heads"])
    a, b = (torch.empty(rows, heads, dtype=dtype, device=device) for _ in range(2))
    a_log, dt_bias = (torch.empty(heads, device=device) for _ in range(2))
    return {"gdn_gates": (a, b, a_log, dt_bias)}
