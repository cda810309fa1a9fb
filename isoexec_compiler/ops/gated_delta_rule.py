"""The gated delta rule: a linear recurrence over a matrix state, one state a value head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="gated_delta_rule",
    doc=(
        "S_t = exp(g_t) S_{t-1} + beta_t k_t (v_t - k_t exp(g_t) S_{t-1}), o_t = scale q_t S_t, from S = 0 at the "
        "start of each sequence; value heads share query/key heads in equal groups."
    ),
    attributes={
        "qk_heads": Field(type="int", minimum=1, doc="query and key heads"),
        "v_heads": Field(type="int", minimum=1, doc="value heads: heads of the state"),
        "key_dim": Field(type="int", minimum=1, doc="width of a query or key head"),
        "value_dim": Field(type="int", minimum=1, doc="width of a value head"),
        "scale": Field(type="float", minimum=0.0, doc="factor of the output, key_dim ** -0.5 as a rule"),
    },
    states=("gdn_state",),
)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    cu_seqlens: torch.Tensor,
    *,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64, differentiable. q, k: [T,H,K]; v: [T,HV,V]; g, beta: [T,HV]; cu_seqlens: [B+1].

    Returns outputs [T,HV,V] and final states [B,HV,K,V].
    """
    import torch

    group = v.shape[1] // q.shape[1]
    q, k = (x.double().repeat_interleave(group, 1) for x in (q, k))
    v, decay, beta = v.double(), g.double().exp(), beta.double()
    outputs, states = [], []
    for begin, end in pairwise(cu_seqlens.tolist()):
        state = v.new_zeros(v.shape[1], q.shape[2], v.shape[2])
        for t in range(begin, end):
            state = state * decay[t, :, None, None]
            written = beta[t, :, None] * (v[t] - torch.einsum("hk,hkv->hv", k[t], state))
            state = state + k[t, :, :, None] * written[:, None, :]
            outputs.append(scale * torch.einsum("hk,hkv->hv", q[t], state))
        states.append(state)
    out = torch.stack(outputs) if outputs else torch.zeros_like(v)
    return out, torch.stack(states) if states else v.new_zeros(0, v.shape[1], q.shape[2], v.shape[2])


def launchers(
    module: ModuleType, attributes: Values, dtype: torch.dtype, rows: int, device: str
) -> dict[str, Callable[[], None]]:
    """Calls of each function of a kernel module, backward, resume and trial of drafts among them, on uninitialised
    tensors of this many rows: for compiling what they launch."""
    import torch

    heads, v_heads, key_dim, value_dim = (int(attributes[n]) for n in ("qk_heads", "v_heads", "key_dim", "value_dim"))
    q, k = (torch.empty(rows, heads, key_dim, dtype=dtype, device=device) for _ in range(2))
    v = torch.empty(rows, v_heads, value_dim, dtype=dtype, device=device)
    g, beta = (torch.empty(rows, v_heads, device=device) for _ in range(2))
    starts = torch.tensor([0, rows], dtype=torch.int32, device=device)
    lanes = torch.zeros(rows, dtype=torch.int32, device=device)

    def rule() -> None:
        out = module.gated_delta_rule(*(x.detach().requires_grad_() for x in (q, k, v, g, beta)), starts)
        out.backward(out)

    def extend() -> None:
        new = (q, k, v, g, beta, starts, module.new_caches(2, device), lanes[:1])
        trials = ({}, {"commit": False}) if "commit" in signature(module.gated_delta_extend).parameters else ({},)
        module.gated_delta_extend(*new)
        for trial in trials:
            with suppress(IndexError):  # places of rows, which no kernel has written
                module.gated_delta_extend(*new, lanes[:1], **trial)

    def step() -> None:
        with suppress(IndexError):
            module.gated_delta_step(q, k, v, g, beta, module.new_caches(2, device), lanes, lanes)

    calls = {"gated_delta_rule": rule, "gated_delta_extend": extend, "gated_delta_step": step}
    return {name: call for name, call in calls.items() if hasattr(module, name)}
