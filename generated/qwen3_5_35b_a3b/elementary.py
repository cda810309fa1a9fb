# SPDX-License-Identifier: Apache-2.0
"""exp, log and square root in fp32 whose bits are the same on every machine and for every shape.

exp and log are separately rounded additions and multiplications, and `elementary_triton` is the same arithmetic in
Triton. Both reduce with ln 2 in two parts of 16 bits, whose products with
the integer n are exact (Cody and Waite), so that fusing those two steps moves no bit.
"""

from __future__ import annotations

import torch

LOG2_E = float.fromhex("0x1.715476p+0")
LN2_HIGH = float.fromhex("0x1.62e4p-1")
LN2_LOW = float.fromhex("0x1.7f7ep-20")
SHIFT = float.fromhex("0x1.8p+23")  # adding it rounds to an integer, which then stands in the low bits
EXP = tuple(
    float.fromhex(c)
    for c in ("0x1.6a23bcp-9", "0x1.123a2cp-6", "0x1.5558f4p-4", "0x1.55549p-2", "0x1.fffffcp-1", "0x1p+1", "0x1p+1")
)  # 2 * e**r on |r| <= ln(2)/2, highest power first
LOG = tuple(2 / k for k in (11, 9, 7, 5, 3))  # of 2 * atanh(s) = 2s + s * z * (2/3 + 2/5 z + ...), z = s**2


def exp(x: torch.Tensor) -> torch.Tensor:
    """e**x for fp32 x, within 1.6 units in the last place; 1 at 0, +0 below -87, inf above 88.73, NaN at NaN."""
    x = x.clamp(-87.5, 89.0)
    shifted = x * LOG2_E + SHIFT
    n = shifted - SHIFT
    r = (x - n * LN2_HIGH) - n * LN2_LOW
    p = EXP[0] * r
    for c in EXP[1:-1]:
        p = (p + c) * r
    return (p + EXP[-1]) * ((shifted.view(torch.int32) << 23) + (126 << 23)).view(torch.float32)


def log(x: torch.Tensor) -> torch.Tensor:
    """ln(x) for fp32 x that is positive and normal, +inf or NaN, within 1 unit in the last place; +0 at 1."""
    word = x.view(torch.int32)
    k = (word - 0x3F3504F3) >> 23  # x = 2**k * m with sqrt(1/2) <= m < sqrt(2)
    f = (word - (k << 23)).view(torch.float32) - 1.0
    k = k.to(torch.float32)
    s = f / (f + 2.0)
    z = s * s
    p = LOG[0] * z
    for c in LOG[1:]:
        p = (p + c) * z
    ln = k * LN2_HIGH + (f - (s * (f - p) - k * LN2_LOW))
    return torch.where(x < torch.inf, ln, x)


def sqrt(x: torch.Tensor) -> torch.Tensor:
    """The correctly rounded square root of fp32 x, as `tl.sqrt_rn`.

    torch's own fp32 root on a CPU may come from a vector library that is off in the last place. Its float64 root,
    even one place off, rounds to the right fp32: no root of an fp32 number lies that near to a rounding boundary.
    """
    return x.double().sqrt().float()
