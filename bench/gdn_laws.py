"""Bit laws of the gated delta rule at the size of a real model, and its errors against float64."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from bench.gdn_cases import rows, same
from isoexec_compiler.ops.gated_delta_rule import reference


def law(qk_heads: int, correlated: float, lengths: tuple[int, ...], decode: int, module: ModuleType) -> dict[str, int]:
    """Differing elements of prefill, then a resumed third of `decode`, then row by row, against one forward."""
    total = [n + decode for n in lengths]
    given = rows(sum(total), qk_heads, correlated=correlated, seed=len(lengths))
    starts = [0, *torch.tensor(total).cumsum(0).tolist()]
    cu = torch.tensor(starts, dtype=torch.int32, device="cuda")
    whole = module.gated_delta_rule(**given, cu_seqlens=cu)
    slots = torch.arange(len(lengths), 0, -1, dtype=torch.int32, device="cuda")
    kept, other = module.new_caches(len(lengths) + 1, "cuda"), module.new_caches(len(lengths) + 1, "cuda")
    for cache in (*kept, *other):
        cache.fill_(float("nan"))
    one_shot = module.gated_delta_extend(**given, cu_seqlens=cu, state=other, slots=slots)
    index = torch.cat([torch.arange(b, b + n) for b, n in zip(starts, lengths, strict=False)]).cuda()
    short = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32, device="cuda")
    part = {name: x[index] for name, x in given.items()}
    found = torch.full_like(whole, float("nan"))
    found[index] = module.gated_delta_extend(**part, cu_seqlens=short, state=kept, slots=slots)
    place = torch.tensor([b + n for b, n in zip(starts, lengths, strict=False)], device="cuda")
    positions = torch.tensor(lengths, dtype=torch.int32, device="cuda")
    resumed = decode // 3
    index = (place[:, None] + torch.arange(resumed, device="cuda")).flatten()
    even = torch.arange(0, index.numel() + 1, resumed, dtype=torch.int32, device="cuda")
    part = {name: x[index] for name, x in given.items()}
    found[index] = module.gated_delta_extend(**part, cu_seqlens=even, state=kept, slots=slots, positions=positions)
    place, positions = place + resumed, positions + resumed
    for _ in range(decode - resumed):
        row = {name: x[place] for name, x in given.items()}
        found[place] = module.gated_delta_step(**row, state=kept, slots=slots, positions=positions)
        place, positions = place + 1, positions + 1
    counts = {"outputs": same(found, whole), "one shot": same(one_shot, whole), "nan": int(whole.isnan().sum())}
    counts["state"] = same(kept.state[1:], other.state[1:]) if min(total) >= 64 else 0
    counts["snapshot"] = same(kept.snapshot[1:], other.snapshot[1:]) if min(total) >= 64 else 0
    for name in ("keys", "values", "residuals", "inverse", "decay"):
        a, b = getattr(kept, name), getattr(other, name)
        counts[name] = sum(
            same(a[s, :, : n % 64], b[s, :, : n % 64]) for s, n in zip(slots.tolist(), total, strict=True)
        )
    return counts


def laws(module: ModuleType) -> None:
    lengths = (1, 15, 16, 17, 37, 48, 63, 64, 65, 100, 130, 200, 333)
    cases = ((16, 0.0, lengths, 150), (16, 0.8, (0, 1, 64), 520), (16, 0.99, (700,), 800))
    for qk_heads, correlated, prefill, decode in cases:
        counts = law(qk_heads, correlated, prefill, decode, module)
        print(f"law keys {correlated} prefill {prefill} decode {decode}: {counts}", flush=True)


def repeats(module: ModuleType, count: int = 1000) -> None:
    """Calls whose bits differ from the first, of `count` forwards and steps on the same inputs."""
    given = rows(2048, 16, correlated=0.5, seed=1)
    cu = torch.tensor([0, 700, 763, 764, 2048], dtype=torch.int32, device="cuda")
    slots = torch.arange(1, 257, dtype=torch.int32, device="cuda")
    state = module.new_caches(257, "cuda")
    for cache in state:
        cache.normal_().mul_(0.05)
    one = {name: x[:256] for name, x in given.items()}
    runs = {
        "forward": lambda: module.gated_delta_rule(**given, cu_seqlens=cu),
        "step": lambda: module.gated_delta_step(**one, state=state, slots=slots, positions=128 + slots % 63),
    }
    for name, run in runs.items():
        expected, differing = run(), torch.zeros((), dtype=torch.int64, device="cuda")
        for _ in range(count):
            differing += (run().view(torch.int16) != expected.view(torch.int16)).any()
        print(f"repeats {name}: {int(differing)} of {count} differ", flush=True)


def accuracy(module: ModuleType, fla: Callable[..., Any] | None) -> None:
    for correlated in (0.0, 0.8, 0.97):
        given = rows(512, 16, correlated=correlated, seed=3)
        cu = torch.tensor([0, 512], dtype=torch.int32, device="cuda")
        truth, _ = reference(**given, cu_seqlens=cu, scale=128**-0.5)
        outs = {"ours": module.gated_delta_rule(**given, cu_seqlens=cu)}
        if fla is not None:
            wide = {n: x.repeat_interleave(2, 1) if n in "qk" else x for n, x in given.items()}
            outs["fla"] = fla(**{n: x[None] for n, x in wide.items()})[0][0]
        errors = {name: float((x.double() - truth).norm() / truth.norm()) for name, x in outs.items()}
        print(f"error against float64, keys {correlated}: {errors}", flush=True)
