# SPDX-License-Identifier: Apache-2.0
"""Cosines and sines of rotary angles, the same bits on every machine: no mathematical library takes part.

Frequencies come from decimal arithmetic; angles, their reduction modulo pi/2 and the Taylor polynomials are float64
additions and multiplications, one at a time.
"""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal, localcontext

import torch

TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
# pi/2 in three parts; products of the first two with an integer below 2**23 are exact.
HALF_PI = tuple(float.fromhex(c) for c in ("0x1.921fb548p+0", "-0x1.de973dc8p-31", "-0x1.9d9cceba3f91fp-62"))
SHIFT = float.fromhex("0x1.8p+52")  # adding it rounds to an integer
SLAB = 4096


def frequencies(rotary_dim: int, theta: float) -> list[float]:
    """theta**(-2i/rotary_dim) for i < rotary_dim/2, correctly rounded to float64."""
    with localcontext() as context:
        context.prec = 50
        base = Decimal(theta)
        return [float(base ** (Decimal(-2 * i) / rotary_dim)) for i in range(rotary_dim // 2)]


def _series(z: torch.Tensor, first: int) -> torch.Tensor:
    """sum of (-z)**k / (first + 2k)!, up to the 16th power of the angle."""
    total = torch.zeros_like(z)
    for k in range(16 - 2 * first, -1, -2):
        total = 1.0 / math.factorial(first + k) - z * total
    return total


def cosines_and_sines(length: int, rotary_dim: int, theta: float) -> torch.Tensor:
    """fp32 [length, rotary_dim/2, 2]: cosine and sine of position * frequency, the angle in float64."""
    table = torch.empty(length, rotary_dim // 2, 2)
    frequency = torch.tensor(frequencies(rotary_dim, theta), dtype=torch.float64)
    for start in range(0, length, SLAB):
        position = torch.arange(start, min(start + SLAB, length), dtype=torch.float64)
        angle = position[:, None] * frequency
        n = (angle * TWO_OVER_PI + SHIFT) - SHIFT
        r = angle
        for part in HALF_PI:
            r = r - n * part
        z = r * r
        cosine, sine = _series(z, 0), _series(z, 1) * r
        quarter = n.to(torch.int64) & 3
        odd = (quarter & 1).bool()
        for k, value, negative in (
            (0, torch.where(odd, sine, cosine), (quarter == 1) | (quarter == 2)),
            (1, torch.where(odd, cosine, sine), quarter >= 2),
        ):
            table[start : start + SLAB, :, k] = torch.where(negative, -value, value).float()
    return table


def digest(table: torch.Tensor) -> str:
    """SHA-256 of the table's bytes, little-endian fp32."""
    return hashlib.sha256(table.cpu().contiguous().numpy().astype("<f4").tobytes()).hexdigest()
