"""Log-probabilities; the vocabulary in another order, and its leaves on ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.log_softmax import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`log_softmax` and `token_logprobs` over the padded vocabulary."""
    import torch

    vocab, padded = int(attributes["vocab"]), int(attributes["padded_vocab"])
    temperature = float(attributes["temperature"])
    logits, targets = draw.rows(rows, padded, torch.float32), draw.integers(rows, below=vocab)
    order = torch.arange(padded, device=draw.device)
    order[:vocab] = torch.randperm(vocab, generator=draw.generator, device=draw.device)

    def every() -> torch.Tensor:
        return reference(logits, vocab=vocab, temperature=temperature)

    return {
        "log_softmax": Call(
            arguments=(logits,),
            rows=(0,),
            truth=lambda: (torch.nn.functional.pad(every(), (0, padded - vocab), value=-torch.inf),),
            reordered=lambda: (logits[:, order],),
            restored=lambda out: out[:, order.argsort()],
        ),
        "token_logprobs": Call(
            arguments=(logits, targets),
            rows=(0, 1),
            truth=lambda: (every().gather(1, targets[:, None])[:, 0],),
            reordered=lambda: (logits[:, order], order.argsort()[targets]),
        ),
    }


def sharded(module: Any, attributes: Values, name: str, arguments: Arguments, size: int) -> torch.Tensor | None:
    """The leaves' sums of every rank side by side, and the target's logit from the one rank that holds it."""
    import torch

    if name != "token_logprobs":
        return None
    logits, targets = arguments
    width = logits.shape[1] // size
    sums, words = [], torch.zeros(len(targets), dtype=torch.int32, device=logits.device)
    for rank, shard in enumerate(logits.chunk(size, 1)):
        sums.append(module.shard_sums(shard.contiguous(), start=rank * width))
        words |= module.shard_target(shard.contiguous(), targets, start=rank * width).view(torch.int32)
    result: torch.Tensor = module.finish(torch.cat(sums, 1), words.view(torch.float32))
    return result
