"""A linear layer without bias: rows of x against rows of the weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="matmul",
    doc="y[t, j] = sum over i of x[t, i] * weight[j, i]; the weight is [n, k], as in torch.nn.Linear.",
    attributes={
        "n": Field(type="int", minimum=1, doc="outputs of the whole layer"),
        "k": Field(type="int", minimum=1, doc="length of the summed axis of the whole layer"),
        "split": Field(
            type="enum",
            choices=("columns", "rows", "none"),
            doc="what tensor parallelism cuts: the outputs, the summed axis, or nothing",
        ),
        "out": Field(type="enum", choices=("model", "fp32"), doc="dtype of y: the model dtype, or fp32"),
    },
)


def reference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The op in float64. x: [T, k]; weight: [n, k]; returns float64 [T, n]."""
    return x.double() @ weight.double().T


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    n, k = int(attributes["n"]), int(attributes["k"])
    x = torch.empty(rows, k, dtype=dtype, device=device)
    return {"matmul": (x, torch.empty(n, k, dtype=dtype, device=device))}
