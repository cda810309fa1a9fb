# SPDX-License-Identifier: Apache-2.0
"""Backward of the gated delta rule on the CPU target: the chunk form in fp32 with torch's products, differentiated by
autograd; deterministic, no claim on bits."""

from __future__ import annotations

import torch

from .gdn_tiles_torch import CHUNK, chunks, spread, tile


def chunk_form(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor,
    cu_seqlens: torch.Tensor, scale: float,
) -> torch.Tensor:  # fmt: skip
    """Outputs [T,HV,V] in fp32: u = (I + A)^-1 (beta v - beta exp(G) S k) chunk by chunk."""
    heads, outputs = v.shape[1], []
    lower = torch.ones(CHUNK, CHUNK).tril(-1).bool()
    s, current = v.new_zeros(0), -1
    for sequence, start, rows in chunks(cu_seqlens):
        if sequence != current:
            s, current = v.new_zeros(heads, k.shape[2], v.shape[2]), sequence
        key, query = (spread(tile(x, start, rows), heads) for x in (k, q))
        value, b = tile(v, start, rows), tile(beta, start, rows)[..., None]
        G = tile(g, start, rows).cumsum(-1)[..., None]
        E = (G - G.transpose(-1, -2)).masked_fill(lower.T, 0.0).exp()
        a = (key @ key.transpose(-1, -2) * E * b).masked_fill(~lower, 0.0)
        p = (query @ key.transpose(-1, -2) * E).masked_fill(lower.T, 0.0)
        right = b * (value - G.exp() * (key @ s))
        u = torch.linalg.solve_triangular(a + torch.eye(CHUNK), right, upper=False, unitriangular=True)
        outputs.append(((G.exp() * (query @ s) + p @ u) * scale).transpose(0, 1)[:rows])
        last = G[..., rows - 1 : rows, :]
        s = last.exp() * s + (key * (last - G).exp()).transpose(-1, -2) @ u
    return torch.cat(outputs)


class DeltaRule(torch.autograd.Function):
    """`forward(run, q, k, v, g, beta, cu_seqlens, scale)`: run(q, k, v, g, beta) gives (outputs, prepared)."""

    @staticmethod
    def forward(ctx, run, q, k, v, g, beta, cu_seqlens, scale):
        out, _ = run(q, k, v, g, beta)
        ctx.save_for_backward(q, k, v, g, beta, cu_seqlens)
        ctx.scale = scale
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        *inputs, cu_seqlens = ctx.saved_tensors
        with torch.enable_grad():
            wide = [x.detach().float().requires_grad_() for x in inputs]
            out = chunk_form(*wide, cu_seqlens, ctx.scale)
        found = torch.autograd.grad(out, wide, grad.float())
        return None, *(x.to(like.dtype) for x, like in zip(found, inputs, strict=True)), None, None
