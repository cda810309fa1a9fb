"""Routing of tokens to experts: scores, the top k of a total order, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="router",
    doc=(
        "Logits x W^T, the top_k largest of each token (of equals the lower expert wins, NaN counts as -inf), and "
        "their softmax weights."
    ),
    attributes={
        "hidden": Field(type="int", minimum=1, doc="width of a token"),
        "experts": Field(type="int", minimum=1, maximum=1024, doc="number of experts"),
        "top_k": Field(type="int", minimum=1, maximum=32, doc="experts of one token"),
        "softmax": Field(type="enum", choices=("selected", "all"), doc="over the chosen logits, or over all experts"),
        "renormalise": Field(type="bool", doc="divide the chosen probabilities by their sum"),
        "scaling": Field(type="float", minimum=0.0, doc="factor of every weight"),
    },
)


def reference(
    x: torch.Tensor, weight: torch.Tensor, *, top_k: int, softmax: str, renormalise: bool, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The op in float64. x: [T, hidden]; weight: [experts, hidden].

    Returns experts int64 [T, top_k] by descending logit and weights float64 [T, top_k].
    """
    import torch

    logits = (x.double() @ weight.double().T).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    values, experts = logits.sort(dim=-1, descending=True, stable=True)
    experts = experts[:, :top_k]
    if softmax == "selected":
        return experts, values[:, :top_k].softmax(-1) * scaling
    chosen = logits.softmax(-1).gather(1, experts)
    return experts, (chosen / chosen.sum(-1, keepdim=True) if renormalise else chosen) * scaling


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    hidden, experts = int(attributes["hidden"]), int(attributes["experts"])
    x, weight = (torch.empty(n, hidden, dtype=dtype, device=device) for n in (rows, experts))
    chosen = torch.zeros(rows, int(attributes["top_k"]), dtype=torch.int32, device=device)
    return {"router": (x, weight), "dispatch": (chosen,)}
