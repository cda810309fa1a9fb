"""The second projection of the routed experts, its summed axis cut into the leaves of a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="expert_down",
    doc="For every (token, chosen expert): the activations times the transposed down weight of the expert, in fp32.",
    attributes={
        "experts": Field(type="int", minimum=1, maximum=1024, doc="number of experts"),
        "top_k": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
        "hidden": Field(type="int", minimum=1, doc="width of a token"),
        "width": Field(type="int", minimum=1, doc="intermediate width of an expert, the summed axis"),
    },
)


def reference(hidden: torch.Tensor, weight: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """The op in float64, by slot. hidden: [T, top_k, width]; weight: [experts, hidden, width]; experts: [T, top_k].

    Returns [T, top_k, hidden].
    """
    import torch

    out = hidden.new_empty((*experts.shape, weight.shape[1]), dtype=torch.float64)
    for expert in range(weight.shape[0]):
        token, slot = (experts == expert).nonzero(as_tuple=True)
        out[token, slot] = hidden[token, slot].double() @ weight[expert].double().T
    return out


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many (token, expert) rows for each function of a kernel module, by its name."""
    import torch

    experts, top_k, hidden, width = (int(attributes[n]) for n in ("experts", "top_k", "hidden", "width"))
    tokens = max(1, rows // top_k)
    activated = torch.empty(tokens * top_k, width, dtype=dtype, device=device)
    weight = torch.empty(experts, hidden, width, dtype=dtype, device=device)
    order, offsets = (torch.zeros(n, dtype=torch.int32, device=device) for n in (tokens * top_k, experts + 1))
    return {"expert_down": (activated, weight, order, offsets)}
