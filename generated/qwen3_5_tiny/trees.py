# SPDX-License-Identifier: Apache-2.0
"""Sums in one explicit order: the balanced tree of adjacent pairs. `trees_triton` is the same in Triton."""

from __future__ import annotations

import torch


def pair_sum(values: torch.Tensor) -> torch.Tensor:
    """fp32 [..., n] -> [..., 1]: ((v0+v1)+(v2+v3))+..., the axis padded with zeros to a power of two."""
    width = values.shape[-1]
    values = torch.nn.functional.pad(values, (0, (1 << (width - 1).bit_length()) - width))
    while values.shape[-1] > 1:
        values = values[..., 0::2] + values[..., 1::2]
    return values
