# SPDX-License-Identifier: Apache-2.0
"""The gate of the shared expert: one number a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op

if TYPE_CHECKING:
    import torch

OP = Op(
    name="shared_gate",
    doc="sigmoid(x . w), in fp32.",
    attributes={"hidden": Field(type="int", minimum=1, doc="width of a token")},
)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The op in float64. x: [T, hidden]; weight: [1, hidden]; returns [T]."""
    return (x.double() @ weight.double()[0]).sigmoid()
