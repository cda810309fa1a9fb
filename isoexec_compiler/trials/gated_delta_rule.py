"""The gated delta rule over whole sequences: a row of the batch is a sequence that passes a chunk edge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.gated_delta_rule import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call

if TYPE_CHECKING:
    import torch

LENGTH = 65
MOST_ROWS = {"sm90": 257, "cpu": 17}


def arguments(attributes: Values, draw: Draw, *shape: int) -> tuple[torch.Tensor, ...]:
    """q, k (unit length), v, log decay and beta of tokens [*shape]."""
    import torch

    heads, v_heads, keys, values = (int(attributes[n]) for n in ("qk_heads", "v_heads", "key_dim", "value_dim"))
    q, k = (
        torch.nn.functional.normalize(draw.normal(*shape, heads, keys, dtype=torch.float32), dim=-1).to(draw.dtype)
        for _ in range(2)
    )
    g = -torch.nn.functional.softplus(draw.normal(*shape, v_heads, dtype=torch.float32))
    beta = draw.normal(*shape, v_heads, dtype=torch.float32).sigmoid()
    return q, k, draw.normal(*shape, v_heads, values), g, beta


def _run(module: Any, *sequences: torch.Tensor) -> torch.Tensor:
    count, length = sequences[0].shape[:2]
    starts = _starts(count, length, sequences[0].device)
    packed = module.gated_delta_rule(*(x.flatten(0, 1).contiguous() for x in sequences), starts)
    result: torch.Tensor = packed.view(count, length, *packed.shape[1:])
    return result


def _starts(count: int, length: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`gated_delta_rule` of `rows` sequences of LENGTH tokens."""
    sequences = arguments(attributes, draw, rows, LENGTH)

    def truth() -> tuple[torch.Tensor, ...]:
        q, k, v, g, beta = (x.flatten(0, 1) for x in sequences)
        out, _ = reference(q, k, v, g, beta, _starts(rows, LENGTH, q.device), scale=float(attributes["scale"]))
        return (out.view(rows, LENGTH, *out.shape[1:]),)

    # Chunks round their intermediates to bfloat16: several roundings enter a result.
    call = Call(arguments=sequences, rows=(0, 1, 2, 3, 4), truth=truth, bound=2.0**-6, run=_run)
    return {"gated_delta_rule": call}
