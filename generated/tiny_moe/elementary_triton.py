# SPDX-License-Identifier: Apache-2.0
"""exp and log of `elementary` in Triton, bit for bit; launch with `enable_fp_fusion=False`.

The two fused operations of `exp` have exact products: they are faster than a product and a sum and give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from . import elementary as e

LOG2_E = tl.constexpr(e.LOG2_E)
LN2_HIGH = tl.constexpr(e.LN2_HIGH)
LN2_LOW = tl.constexpr(e.LN2_LOW)
SHIFT = tl.constexpr(e.SHIFT)
E6, E5, E4, E3, E2, E1, E0 = (tl.constexpr(c) for c in e.EXP)
L11, L9, L7, L5, L3 = (tl.constexpr(c) for c in e.LOG)
ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def exp(x):
    """e**x, see `elementary.exp`."""
    return exp_nonpositive(tl.minimum(x, 89.0, propagate_nan=ALL))


@triton.jit
def exp_nonpositive(x):
    """The bits of `exp` for x up to 89, one instruction shorter: for distances to a maximum."""
    x = tl.maximum(x, -87.5, propagate_nan=ALL)
    shifted = x * LOG2_E + SHIFT
    n = shifted - SHIFT
    r = tl.fma(n, -LN2_LOW, tl.fma(n, -LN2_HIGH, x))
    p = ((((((E6 * r + E5) * r + E4) * r + E3) * r + E2) * r) + E1) * r + E0
    return p * ((shifted.to(tl.int32, bitcast=True) << 23) + 0x3F000000).to(tl.float32, bitcast=True)


@triton.jit
def log(x):
    """ln(x), see `elementary.log`."""
    word = x.to(tl.int32, bitcast=True)
    k = (word - 0x3F3504F3) >> 23
    f = (word - (k << 23)).to(tl.float32, bitcast=True) - 1.0
    k = k.to(tl.float32)
    s = tl.div_rn(f, f + 2.0)
    z = s * s
    p = ((((L11 * z + L9) * z + L7) * z + L5) * z + L3) * z
    ln = k * LN2_HIGH + (f - (s * (f - p) - k * LN2_LOW))
    return tl.where(x < float("inf"), ln, x)
