# SPDX-License-Identifier: Apache-2.0
"""Backward passes of the ops around the gated delta rule, for both targets: deterministic, without a claim on bits."""

from __future__ import annotations

import torch


def l2_norm(x: torch.Tensor, gradient: torch.Tensor, eps: float) -> torch.Tensor:
    """x, gradient [..., width] -> the gradient of x in its dtype."""
    value, incoming = x.float(), gradient.float()
    r = (value.square().sum(-1, keepdim=True) + eps).rsqrt()
    unit = value * r
    return (r * (incoming - unit * (incoming * unit).sum(-1, keepdim=True))).to(x.dtype)


def gated_rms_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, gate, gradient [..., width], weight [width] -> the gradients of x, gate and weight in their dtypes."""
    value, gated, incoming = x.float(), gate.float(), gradient.float()
    r = (value.square().mean(-1, keepdim=True) + eps).rsqrt()
    unit = value * r
    sigmoid = gated.sigmoid()
    opened = incoming * gated * sigmoid
    scaled = opened * weight.float()
    dx = r * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))
    dgate = incoming * unit * weight.float() * (sigmoid + gated * sigmoid * (1.0 - sigmoid))
    dweight = (opened * unit).reshape(-1, x.shape[-1]).sum(0)
    return dx.to(x.dtype), dgate.to(gate.dtype), dweight.to(weight.dtype)


def gdn_gates(
    saved: tuple[torch.Tensor, ...], dg: torch.Tensor, dbeta: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """saved: a [T, heads], a_log, dt_bias [heads], g, beta [T, heads] -> the gradients of a, b, a_log and dt_bias."""
    a, a_log, dt_bias, g, beta = saved
    slope = dg * -a_log.exp() * (a.float() + dt_bias).sigmoid()
    db = dbeta * beta * (1.0 - beta)
    return slope.to(a.dtype), db.to(a.dtype), (dg * g).sum(0), slope.sum(0)


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, rows: torch.Tensor, gradient: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """x, gradient [T, C], weight [C, taps], rows [T] places in the sequences -> the gradients of x and weight."""
    taps, value, incoming, w = weight.shape[1], x.float(), gradient.float(), weight.float()
    shifted = [_earlier(value, rows, taps - 1 - tap) for tap in range(taps)]
    z = sum(one * w[:, tap] for tap, one in enumerate(shifted))
    sigmoid = torch.sigmoid(z)
    dz = incoming * (sigmoid + z * sigmoid * (1.0 - sigmoid))
    dweight = torch.stack([(dz * one).sum(0) for one in shifted], 1)
    dx = torch.zeros_like(value)
    for tap in range(taps):
        back = taps - 1 - tap
        reaches = dz * w[:, tap] * (rows >= back)[:, None]
        dx[: len(dx) - back] += reaches[back:]
    return dx.to(x.dtype), dweight.to(weight.dtype)


def _earlier(x: torch.Tensor, rows: torch.Tensor, back: int) -> torch.Tensor:
    """The row `back` rows earlier in the same sequence; zeros before its start."""
    return torch.where((rows >= back)[:, None], x.roll(back, 0), 0.0)
