"""Log-probabilities of the next token from logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.registry import Field, Op, Values

if TYPE_CHECKING:
    import torch

OP = Op(
    name="log_softmax",
    doc="log(softmax(logits / temperature)) over the first `vocab` columns; the padding is never read into a result.",
    attributes={
        "vocab": Field(type="int", minimum=2, doc="number of token ids"),
        "padded_vocab": Field(type="int", minimum=2, doc="columns with padding: the axis that is cut into leaves"),
        "temperature": Field(type="float", minimum=1e-3, doc="divides the logits, once"),
    },
)


def reference(logits: torch.Tensor, *, vocab: int, temperature: float) -> torch.Tensor:
    """The op in float64, in nats. logits: [T, at least vocab]; returns [T, vocab]."""
    return (logits[:, :vocab].double() / temperature).log_softmax(-1)


def example(attributes: Values, dtype: torch.dtype, rows: int, device: str) -> dict[str, tuple[torch.Tensor, ...]]:
    """Uninitialised arguments of this many rows for each function of a kernel module, by its name."""
    import torch

    padded = int(attributes["padded_vocab"])
    logits = torch.empty(rows, padded, dtype=torch.float32, device=device)
    return {"log_softmax": (logits,), "token_logprobs": (logits, torch.empty(rows, dtype=torch.int64, device=device))}
