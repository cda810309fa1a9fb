"""Inputs and drivers of the gated delta rule's laws: packs of sequences, splits, steps."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from isoexec_compiler.registry import implementations
from tests.support.inputs import DTYPES, normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, INTERPRETING, TARGET

WIDTH = 64
ATTRIBUTES = {"qk_heads": 1, "v_heads": 2, "key_dim": WIDTH, "value_dim": WIDTH, "scale": WIDTH**-0.5}
LENGTHS = (66, 17, 0) if INTERPRETING else (130, 17, 0, 64, 1, 63, 65)

Rows = dict[str, torch.Tensor]


def kernel(implementation: str, place: str, dtype: str = "bf16", **changed: Any) -> ModuleType:
    """The interpreter gets the widest programs, as it runs them one after the other, and no Gluon."""
    attributes = {**ATTRIBUTES, **changed}
    launch = None
    if place == "interpreter":
        (_, recommended), *_ = implementations()[implementation].recommend(attributes).launch["sm90"]
        chosen = {k: WIDTH if k.endswith("block_v") else v for k, v in recommended.items()}
        launch = ((None, chosen | ({"scan_schedule": "tiles"} if "scan_schedule" in chosen else {})),)
    return render_kernel(implementation, TARGET[place], attributes, launch=launch, dtype=dtype)


def rows(tokens: int, place: str, *, seed: int = 0, correlated: float = 0.3, dtype: str = "bf16") -> Rows:
    """Fresh unit queries and keys, values, log decays and write strengths; `correlated` pulls keys together."""
    q, k = (normal(tokens, 1, WIDTH, seed=seed + i) for i in (0, 1))
    k = k * (1 - correlated) + correlated * normal(1, 1, WIDTH, seed=seed + 2)
    q, k = ((x / x.norm(dim=-1, keepdim=True)).to(DTYPES[dtype]) for x in (q, k))
    g = -normal(tokens, 2, seed=seed + 3).abs() * 0.05
    given = {"q": q, "k": k, "v": normal(tokens, 2, WIDTH, seed=seed + 4, dtype=dtype), "g": g}
    given["beta"] = normal(tokens, 2, seed=seed + 5).sigmoid()
    return {name: x.to(DEVICE[place]) for name, x in given.items()}


def edges(lengths: tuple[int, ...] | list[int], place: str) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(DEVICE[place])


def integers(values: list[int], place: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE[place])


def poisoned(module: ModuleType, slots: int, place: str) -> Any:
    """New caches full of NaN: whatever is read without right shows."""
    caches = module.new_caches(slots, DEVICE[place])
    for cache in (caches,) if isinstance(caches, torch.Tensor) else caches:
        cache.fill_(float("nan"))
    return caches


def places(lengths: tuple[int, ...], begins: list[int], ends: list[int]) -> torch.Tensor:
    """Indices of rows [begin, end) of each sequence in the pack."""
    starts = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    return torch.cat([torch.arange(s + b, s + e) for s, b, e in zip(starts, begins, ends, strict=False)])


def extend(module: ModuleType, given: Rows, lengths: tuple[int, ...], begins: list[int], ends: list[int], caches: Any,
           slots: torch.Tensor, place: str, **options: bool) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Rows [begin, end) of each sequence in one call; their places and outputs."""
    index = places(lengths, begins, ends).to(DEVICE[place])
    cu = edges([e - b for b, e in zip(begins, ends, strict=True)], place)
    part = {name: x[index] for name, x in given.items()}
    positions = integers(begins, place)
    return index, module.gated_delta_extend(
        **part, cu_seqlens=cu, state=caches, slots=slots, positions=positions, **options
    )


def steps(module: ModuleType, given: Rows, lengths: tuple[int, ...], begin: int, end: int, caches: Any,
          slots: torch.Tensor, out: torch.Tensor, place: str) -> None:  # fmt: skip
    """Rows [begin, end) of every sequence that is so long, one at a time, into `out`."""
    for t in range(begin, min(end, max(lengths))):
        live = [i for i, n in enumerate(lengths) if t < n]
        index = places(lengths, [t if i in live else 0 for i in range(len(lengths))],
                       [t + 1 if i in live else 0 for i in range(len(lengths))]).to(DEVICE[place])  # fmt: skip
        part = {name: x[index] for name, x in given.items()}
        out[index] = module.gated_delta_step(
            **part, state=caches, slots=slots[live], positions=integers([t] * len(live), place)
        )
