# SPDX-License-Identifier: Apache-2.0
"""Backward of the regions around the gated delta rule, in torch on either target: deterministic, no claim on bits."""

from __future__ import annotations

import torch


def l2_norm(x: torch.Tensor, grad: torch.Tensor, eps: float) -> torch.Tensor:
    """Gradient of x [..., width] from that of x / sqrt(sum(x^2) + eps)."""
    x, wide = x.float(), grad.float()
    r = (x.square().sum(-1, keepdim=True) + eps).rsqrt()
    unit = x * r
    return (r * (wide - unit * (wide * unit).sum(-1, keepdim=True))).to(grad.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of x and gate [..., width] and of weight [width]."""
    x, z, w, wide = x.float(), gate.float(), weight.float(), grad.float()
    r = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
    unit, sigmoid = x * r, z.sigmoid()
    passed = wide * (z * sigmoid)
    scaled = passed * w
    dx = r * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    dz = wide * unit * w * (sigmoid * (1 + z * (1 - sigmoid)))
    return dx.to(grad.dtype), dz.to(gate.dtype), (passed * unit).flatten(0, -2).sum(0).to(weight.dtype)


def gdn_gates(
    a: torch.Tensor, dt_bias: torch.Tensor, a_log: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    dg: torch.Tensor, dbeta: torch.Tensor, dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients of a, b [T,HV], a_log and dt_bias [HV]."""
    da = dg * -a_log.exp() * (a.float() + dt_bias).sigmoid()
    return da.to(dtype), (dbeta * beta * (1 - beta)).to(dtype), (dg * g).sum(0), da.sum(0)


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, cu_seqlens: torch.Tensor, grad: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Gradients of x [T,C], weight [C,4] and bias [C]."""
    tokens, taps = x.shape[0], weight.shape[1]
    offset = torch.arange(tokens, device=x.device)
    offset = offset - cu_seqlens[:-1].long().repeat_interleave(cu_seqlens.diff().long(), output_size=tokens)
    rows, w = x.float(), weight.float()
    pad = torch.nn.functional.pad
    shifted = [pad(rows, (0, 0, back, 0))[:tokens] * (offset >= back)[:, None] for back in reversed(range(taps))]
    total = sum(part * w[:, j] for j, part in enumerate(shifted))
    total = total if bias is None else total + bias.float()
    sigmoid = total.sigmoid()
    wide = grad.float() * (sigmoid * (1 + total * (1 - sigmoid)))
    dx = torch.zeros_like(wide)
    for j, back in enumerate(reversed(range(taps))):
        dx += pad(wide * (offset >= back)[:, None] * w[:, j], (0, 0, 0, back))[back:]
    dw = torch.stack([(wide * part).sum(0) for part in shifted], 1).to(weight.dtype)
    return dx.to(x.dtype), dw, None if bias is None else wide.sum(0).to(bias.dtype)
