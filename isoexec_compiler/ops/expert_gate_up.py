"""The first projection of the routed experts: each row by the weight of its expert."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="expert_gate_up",
    doc="For every (token, chosen expert): the token times the transposed gate and up weights of the expert.",
    attributes={
        "experts": Field(type="int", minimum=1, maximum=1024, doc="number of experts"),
        "top_k": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
        "hidden": Field(type="int", minimum=1, doc="width of a token, the summed axis"),
        "width": Field(type="int", minimum=1, doc="intermediate width of an expert: half the columns of the output"),
    },
)


def reference(x: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The op in float64, by slot. x: [T, hidden]; weight: [experts, 2 * width, hidden]; experts: [T, top_k].

    Returns [T, top_k, 2 * width].
    """
    import torch

    out = x.new_empty((*experts.shape, weight.shape[1]), dtype=torch.float64)
    for expert in range(weight.shape[0]):
        token, slot = (experts == expert).nonzero(as_tuple=True)
        out[token, slot] = x[token].double() @ weight[expert].double().T
    return out


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many (token, expert) rows for each function of a kernel module, by its name."""
    import torch

    experts, top_k, hidden, width = (int(attributes[n]) for n in ("experts", "top_k", "hidden", "width"))
    tokens = max(1, rows // top_k)
    x = torch.empty(tokens, hidden, dtype=dtype, device=device)
    weight = torch.empty(experts, 2 * width, hidden, dtype=dtype, device=device)
    order, offsets = (torch.zeros(n, dtype=torch.int32, device=device) for n in (tokens * top_k, experts + 1))
    return {"expert_gate_up": (x, weight, order, offsets)}
