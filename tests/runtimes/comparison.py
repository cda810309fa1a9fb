"""What an engine reported against what a trainer computed: counts of differing bits, never a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from tests.support.bits import differing


@dataclass(slots=True, kw_only=True)
class Cell:
    """One cell of the matrix: counts of differing and of compared values."""

    engine: str
    trainer: str
    logprobs: int = 0
    of_logprobs: int = 0
    prompts: int = 0
    of_prompts: int = 0
    missing: dict[str, int] = field(default_factory=dict)
    of_digests: int = 0

    @property
    def clean(self) -> bool:
        return not (self.logprobs or self.prompts or sum(self.missing.values()))

    def line(self) -> str:
        text = f"{self.engine:<24} {self.trainer:<20} {self.logprobs:>4} of {self.of_logprobs:<5}"
        text += f" prompts {self.prompts} of {self.of_prompts:<5}" if self.of_prompts else " " * 20
        return text + (f" rows {sum(self.missing.values())} of {self.of_digests}" if self.of_digests else "")


def compare(engine: dict[str, Any], key: str, ranks: list[dict[str, Any]], names: tuple[str, str]) -> Cell:
    """Every rank's log-probabilities with the engine's, and the engine's row digests with the union of the ranks'."""
    cell = Cell(engine=names[0], trainer=names[1])
    for rank in ranks:
        for i, scored in enumerate(rank[key]["logprobs"]):
            prompt = engine["prompts"][i]
            cell.logprobs += differing(engine["sampled"][i], scored[prompt - 1 :])
            cell.of_logprobs += len(engine["sampled"][i])
            if engine["prompt"] and prompt > 1:
                cell.prompts += differing(engine["prompt"][i], scored[: prompt - 1])
                cell.of_prompts += prompt - 1
    if ranks[0][key]["digests"]:
        for region, digests in engine["digests"].items():
            theirs = torch.cat([rank[key]["digests"][region] for rank in ranks])
            cell.missing[region] = int((~torch.isin(digests, theirs)).sum())
            cell.of_digests += len(digests)
    return cell
