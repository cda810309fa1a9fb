"""The gated delta rule over whole sequences: a row of the batch is a sequence that passes a chunk edge.

A sequence is tried at once, as a prefill and a resume inside its chunk, and as a prefill and single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.gated_delta_rule import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call

if TYPE_CHECKING:
    import torch

LENGTH, CUT, STEPS = 65, 40, 5
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


def _continued(module: Any, *sequences: torch.Tensor, stepped: bool) -> torch.Tensor:
    """Caches of their own, a prefill, then the rest of the rows at once or one by one. A module that can only step
    steps from the first row on."""
    import torch

    (count, length), device = sequences[0].shape[:2], sequences[0].device
    state, slots = module.new_caches(count + 1, device), torch.arange(1, count + 1, dtype=torch.int32, device=device)

    def held(begin: int, end: int) -> tuple[torch.Tensor, ...]:
        return tuple(x[:, begin:end].flatten(0, 1).contiguous() for x in sequences)

    first, parts = length - STEPS if stepped else CUT, []
    if hasattr(module, "gated_delta_extend"):
        parts.append(module.gated_delta_extend(*held(0, first), _starts(count, first, device), state, slots))
    else:
        first = 0
    for begin in range(first, length, 1 if stepped else length):
        positions = torch.full_like(slots, begin)
        if stepped:
            parts.append(module.gated_delta_step(*held(begin, begin + 1), state, slots, positions))
        else:
            starts = _starts(count, length - begin, device)
            parts.append(module.gated_delta_extend(*held(begin, length), starts, state, slots, positions))
    return torch.cat([part.view(count, -1, *part.shape[1:]) for part in parts], 1)


def _starts(count: int, length: int, device: torch.device) -> torch.Tensor:
    import torch

    return torch.arange(0, count * length + 1, length, dtype=torch.int32, device=device)


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`gated_delta_rule` of `rows` sequences of LENGTH tokens; on a GPU, where they have launches of their own,
    `gated_delta_extend` and `gated_delta_step` too."""
    sequences = arguments(attributes, draw, rows, LENGTH)

    def truth() -> tuple[torch.Tensor, ...]:
        q, k, v, g, beta = (x.flatten(0, 1) for x in sequences)
        out, _ = reference(q, k, v, g, beta, _starts(rows, LENGTH, q.device), scale=float(attributes["scale"]))
        return (out.view(rows, LENGTH, *out.shape[1:]),)

    # Chunks round their intermediates to bfloat16: several roundings enter a result.
    runs: dict[str, Callable[..., torch.Tensor]] = {"gated_delta_rule": _run}
    if draw.device != "cpu":
        runs["gated_delta_extend"] = partial(_continued, stepped=False)
        runs["gated_delta_step"] = partial(_continued, stepped=True)
    return {
        name: Call(arguments=sequences, rows=(0, 1, 2, 3, 4), truth=truth, bound=2.0**-6, run=run)
        for name, run in runs.items()
    }
