"""How fast an engine or a trainer in this process is: milliseconds, by what they are called on the page."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

DECODING = (1, 64, 256)  # sequences at once
PREFILLING = (16, 1000)  # sequences, tokens of each
STEPS = 100
SCORING = (4, 1024)


def of_engine(llm: Any, vocab: int) -> dict[str, float]:
    """A decode step and a prefill, from the wall clock round `LLM.generate`."""
    generator = torch.Generator().manual_seed(5)

    def milliseconds(count: int, length: int, tokens: int) -> float:
        prompts = torch.randint(0, vocab, (count, length), generator=generator).tolist()
        began = time.monotonic()
        generate(llm, prompts, tokens)
        return (time.monotonic() - began) * 1e3

    found = {}
    for count in DECODING:
        first = statistics.median(milliseconds(count, 16, 1) for _ in range(3))
        found[f"engine: decode step, {count} sequences"] = (milliseconds(count, 16, 1 + STEPS) - first) / STEPS
    count, length = PREFILLING
    prefills = [milliseconds(count, length, 1) for _ in range(4)][1:]
    return found | {f"engine: prefill, {count} x {length} tokens": statistics.median(prefills)}


def generate(llm: Any, prompts: list[list[int]], tokens: int) -> list[Any]:
    """`tokens` of each prompt at temperature 1, with their log-probabilities."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=tokens, logprobs=0, ignore_eos=True, detokenize=False)
    outputs: list[Any] = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
    return outputs


def of_trainer(score: Callable[[torch.Tensor], torch.Tensor], device: str) -> dict[str, float]:
    """The forward with log-probabilities, from the wall clock until its result is on the host."""
    count, length = SCORING
    tokens = torch.randint(0, 200, SCORING, device=device)
    times = []
    for _ in range(12 if device == "cuda" else 3):
        torch.empty(0, device=device).cpu()
        began = time.monotonic()
        score(tokens).sum().item()
        times.append((time.monotonic() - began) * 1e3)
    return {f"trainer: forward, {count} x {length} tokens": statistics.median(times[2:])}
