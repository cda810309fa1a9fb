"""Laws of the gated delta rule at the size of a real model, on the device: `python -m bench.gdn_laws`.

Every law counts differing elements of integer views, against the packed forward that a trainer runs; rows of
`bench/results/gdn_laws.json` say how many were compared and how many differ. Then errors against float64, beside
flash-linear-attention's.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from bench import harness
from bench.gdn_cases import attributes, compile_launchers, rows, same
from isoexec_compiler.implementations.gdn_rxc import SCAN_LAUNCH, STEP_LAUNCH
from isoexec_compiler.ops.gated_delta_rule import reference
from isoexec_compiler.registry import implementations
from tests.support.rendering import render_kernel

KEYS = {"random": (0.0, 0.1), "correlated": (0.9, 0.1), "slow decay": (0.9, 0.001)}
DEVICE = "cuda"
Rows = dict[str, torch.Tensor]


def integers(values: Any) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int32, device=DEVICE)


def edges(lengths: list[int]) -> torch.Tensor:
    return integers([0, *itertools.accumulate(lengths)])


def tokens(keys: str, count: int, qk_heads: int, seed: int = 0) -> Rows:
    correlated, decay = KEYS[keys]
    given = rows(count, qk_heads, DEVICE, correlated, seed)
    return {**given, "g": given["g"] * (decay / (0.005 if correlated else 0.1))}


def places(starts: list[int], begins: list[int], ends: list[int]) -> torch.Tensor:
    """Indices of rows [begin, end) of each sequence of a pack."""
    return torch.cat([torch.arange(s + b, s + e) for s, b, e in zip(starts, begins, ends, strict=False)]).to(DEVICE)


def poisoned(module: ModuleType, slots: int) -> Any:
    caches = module.new_caches(slots, DEVICE)
    for cache in caches:
        cache.fill_(float("nan"))
    return caches


def caches_differing(a: Any, b: Any, slots: torch.Tensor, lengths: list[int]) -> int:
    """State and snapshot where a chunk was filled, and the rows of the open chunks."""
    count = 0
    for slot, n in zip(slots.tolist(), lengths, strict=True):
        if n >= 64:
            count += same(a.state[slot], b.state[slot]) + same(a.snapshot[slot], b.snapshot[slot])
        for name in ("keys", "values", "residuals", "inverse", "decay", "gates", "betas"):
            count += same(getattr(a, name)[slot, :, : n % 64], getattr(b, name)[slot, :, : n % 64])
    return count


def law(module: ModuleType, given: Rows, lengths: list[int], cuts: list[list[int]], steps: list[int]) -> harness.Row:
    """Sequences in one prefill, and from cut to cut and then `steps` rows one by one, against the packed forward."""
    starts, total = [0, *itertools.accumulate(lengths)], sum(lengths)
    whole = module.gated_delta_rule(**given, cu_seqlens=edges(lengths))
    slots = torch.arange(len(lengths), 0, -1, dtype=torch.int32, device=DEVICE)
    kept, other = poisoned(module, len(lengths) + 1), poisoned(module, len(lengths) + 1)
    one_shot = module.gated_delta_extend(**given, cu_seqlens=edges(lengths), state=other, slots=slots)
    found = torch.full_like(whole, float("nan"))
    lasts = [n - s for n, s in zip(lengths, steps, strict=True)]
    for begins, ends in itertools.pairwise([[0] * len(lengths), *cuts, lasts]):
        index = places(starts, begins, ends)
        part = {name: x[index] for name, x in given.items()}
        sizes = edges([e - b for b, e in zip(begins, ends, strict=True)])
        found[index] = module.gated_delta_extend(
            **part, cu_seqlens=sizes, state=kept, slots=slots, positions=integers(begins)
        )
    begins = integers(lasts)
    for j in range(max(steps)):
        live = (integers(steps) > j).nonzero()[:, 0]
        index = (integers(starts[:-1]) + begins + j)[live]
        part = {name: x[index] for name, x in given.items()}
        found[index] = module.gated_delta_step(**part, state=kept, slots=slots[live], positions=(begins + j)[live])
    differing = {
        "rows": same(found, whole),
        "one prefill": same(one_shot, whole),
        "caches": caches_differing(kept, other, slots, lengths),
        "not finite": int((~whole.isfinite()).sum()),
    }
    return {"compared": whole.numel(), "tokens": total, "differing": sum(differing.values()), "parts": differing}


def laws(module: ModuleType, qk_heads: int = 16) -> Iterator[harness.Row]:
    """Trainer, prefill, chunked prefill at every split, resume and decode: one function of a row."""
    for keys in KEYS:
        every = list(range(1, 200))
        given = tokens(keys, 200, qk_heads)
        packed = {name: x.repeat(199, *[1] * (x.dim() - 1)) for name, x in given.items()}
        found = law(module, packed, [200] * 199, [every], [0] * 199)
        yield {"name": f"every split of 200 tokens, {keys} keys", "H": qk_heads, **found}
        lengths = [1500, 1536, 1537, 1599]
        found = law(module, tokens(keys, sum(lengths), qk_heads, 1), lengths, [], [1500] * 4)
        yield {"name": f"1500 tokens one by one, {keys} keys", "H": qk_heads, **found}
    lengths = [1, 15, 16, 17, 37, 48, 63, 64, 65, 100, 127, 128, 129, 200, 333]
    total = [n + 150 for n in lengths]
    found = law(module, tokens("random", sum(total), qk_heads, 2), total, [lengths], [100] * len(lengths))
    yield {"name": "ragged pack: prefill, resume, decode", "H": qk_heads, **found}
    lengths = [0, 5, 0, 1]
    found = law(module, tokens("random", 6, qk_heads, 3), lengths, [], [0, 5, 0, 1])
    yield {"name": "empty sequences, cu_seqlens 0 0 5 5 6", "H": qk_heads, **found}
    given, lengths = tokens("random", 512, qk_heads, 4), [192, 63, 193, 64]
    zero, one = torch.zeros_like(given["g"]), torch.ones_like(given["g"])
    cases = {"g = 0": {"g": zero}, "beta = 0": {"beta": zero}, "beta = 1, g = 0": {"beta": one, "g": zero}}
    for name, changed in cases.items():
        found = law(module, {**given, **changed}, lengths, [], [130, 63, 130, 64])
        out = module.gated_delta_rule(**{**given, **changed}, cu_seqlens=edges(lengths)).double()
        truth, _ = reference(**{**given, **changed}, cu_seqlens=edges(lengths), scale=128**-0.5)
        error = float((out - truth).norm() / truth.norm().clamp(min=1e-30))
        yield {"name": name, "H": qk_heads, **found, "error against float64": error}
    late = {**given, "k": given["k"].roll(1, 0)}
    moved = same(*(module.gated_delta_rule(**x, cu_seqlens=edges(lengths)) for x in (given, late)))
    yield {"name": "control: keys one row late", "compared": given["v"].numel(), "control differing": moved}


def every_launch() -> list[dict[str, int]]:
    """What the contract may choose: every launch of the scan, then every other of the step."""
    ((_, known),) = implementations()["gdn_rxc"].recommend(attributes(16)).launch["sm90"]
    found = [dict(known)]
    for fields in (SCAN_LAUNCH, STEP_LAUNCH):
        for values in itertools.product(*(field.choices for field in fields.values())):
            launch = {**known, **dict(zip(fields, values, strict=True))}
            found += [launch] if launch not in found else []
    return found


def repeats(module: ModuleType, count: int = 1000) -> Iterator[harness.Row]:
    """Calls whose bits differ from the first, of `count` forwards and steps on the same inputs."""
    given = rows(2048, 16, DEVICE, 0.5, 1)
    cu = integers([0, 700, 763, 764, 2048])
    slots = torch.arange(1, 257, dtype=torch.int32, device=DEVICE)
    state = module.new_caches(257, DEVICE)
    for cache in state:
        cache.normal_().mul_(0.05)
    one = {name: x[:256] for name, x in given.items()}
    runs = {
        "forward": lambda: module.gated_delta_rule(**given, cu_seqlens=cu),
        "step": lambda: module.gated_delta_step(**one, state=state, slots=slots, positions=128 + slots % 63),
    }
    for name, run in runs.items():
        expected, differing = run(), torch.zeros((), dtype=torch.int64, device=DEVICE)
        for _ in range(count):
            differing += (run().view(torch.int16) != expected.view(torch.int16)).any()
        yield {"name": f"repeats of the {name}", "compared": count, "differing": int(differing)}


def accuracy(module: ModuleType, fla: Callable[..., Any] | None) -> Iterator[harness.Row]:
    """Errors of outputs and of final states against float64, ours and the native chunk kernel's."""
    for keys in KEYS:
        given, cu = tokens(keys, 512, 16, 5), integers([0, 512])
        truth, state = reference(**given, cu_seqlens=cu, scale=128**-0.5)
        caches = module.new_caches(2, DEVICE)
        out = module.gated_delta_extend(**given, cu_seqlens=cu, state=caches, slots=integers([1]))
        found = {"ours": (out, caches.state[1:].transpose(-1, -2))}
        if fla is not None:
            wide = {n: (x.repeat_interleave(2, 1) if n in "qk" else x)[None] for n, x in given.items()}
            out, final = fla(**wide, output_final_state=True)
            found["native"] = (out[0], final)
        row: dict[str, Any] = {"name": f"error against float64, {keys} keys"}
        for who, parts in found.items():
            for part, x, exact in zip(("output", "state"), parts, (truth, state), strict=True):
                row[f"{who} {part}"] = float((x.double() - exact).norm() / exact.norm())
        for part in ("output", "state") if fla is not None else ():
            row[f"{part} ratio"] = round(row[f"ours {part}"] / row[f"native {part}"], 3)
        yield row


def launch_law(launch: dict[str, int], given: Rows, lengths: list[int], expected: torch.Tensor) -> harness.Row:
    """A launch against the recommended one's forward: prefill, resume, decode; and repeats."""
    module = render_kernel("gdn_rxc", "sm90", attributes(16), launch=((None, launch),))
    found = law(module, given, lengths, [[n // 2 for n in lengths]], [n // 3 for n in lengths])
    moved = same(module.gated_delta_rule(**given, cu_seqlens=edges(lengths)), expected)
    repeated = {row["name"]: row["differing"] for row in repeats(module)}
    return {"name": f"launch {launch}", **found, "differing from the recommended": moved, **repeated}


def main() -> None:
    from bench.autotuned import compile_candidates, measure_briefly
    from bench.gdn import fla_chunk

    tuning = compile_candidates(fla_once, (os.cpu_count() or 2) // 3)
    listed = every_launch()
    functions = {"gated_delta_rule": 512, "gated_delta_extend": 512, "gated_delta_step": 64}
    jobs = [("gdn_rxc", 16, launch, functions) for launch in listed]
    with multiprocessing.get_context("fork").Pool(os.cpu_count()) as pool:
        pool.map(compile_launchers, [("gdn_rxc", 16, listed[0], {name: n}) for name, n in functions.items()])
        refused = {i: why for i, why in enumerate(pool.map(compile_launchers, jobs, chunksize=1)) if why}
    found: list[harness.Row] = []

    def take(lines: Iterator[harness.Row]) -> None:
        try:
            for line in lines:
                print(*(f"{key}: {value}" for key, value in line.items()), sep="; ", flush=True)
                found.append(line)
                harness.write("gdn_laws", found)
        except Exception as error:  # a peer that does not run must not cost the other rows
            print(f"{type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)

    module = render_kernel("gdn_rxc", "sm90", attributes(16))
    with torch.no_grad():
        take(laws(module))
        take(repeats(module))
        for process in tuning:
            process.join(60)
        measure_briefly()
        take(accuracy(module, fla_chunk()))
        lengths = [130, 17, 0, 64, 1, 63, 65, 200]
        given = tokens("correlated", sum(lengths), 16, 6)
        expected = module.gated_delta_rule(**given, cu_seqlens=edges(lengths))
        for i, launch in enumerate(listed):
            known = {"name": f"launch {launch}", "refused": refused.get(i)}
            take(iter([known if i in refused else launch_law(launch, given, lengths, expected)]))


def fla_once() -> None:
    from bench.gdn import fla_chunk

    fla_chunk()(**{n: x[None] for n, x in rows(512, 32).items()}, output_final_state=True)


if __name__ == "__main__":
    main()
