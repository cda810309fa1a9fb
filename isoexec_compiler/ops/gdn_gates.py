"""Log decay and write strength of the gated delta rule, per value head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="gdn_gates",
    doc="g = -exp(A_log) * softplus(a + dt_bias) and beta = 1 / (1 + exp(-b)), both fp32; A_log and dt_bias stay fp32.",
    attributes={"v_heads": Field(type="int", minimum=1, doc="value heads")},
)


def reference(
    a: torch.Tensor, b: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64. a, b: [T, v_heads]; a_log, dt_bias: [v_heads]; returns g and beta, float64 [T, v_heads]."""
    import torch

    g = -a_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double(), threshold=1e9)
    return g, b.double().sigmoid()


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    heads = int(attributes["v_heads"])
    a, b = (torch.empty(rows, heads, dtype=dtype, device=device) for _ in range(2))
    return {"gdn_gates": (a, b, *(torch.empty(heads, device=device) for _ in range(2)))}
