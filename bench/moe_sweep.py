"""Launches of the expert projections, timed and their bits compared: `python -m bench.moe_sweep [--schedules]`.

Every variant is compiled first, without the device, in one process a core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace
from unittest import mock

import torch

from bench import harness
from bench.moe_layer import QWEN3, QWEN3_5, QWEN3_5_TP8, Layer, Shape
from isoexec_compiler.registry import Values
from tests.support.bits import differing
from tests.support.ptx import compiled_launches

CASES = ((QWEN3_5, 8192), (QWEN3_5, 64), (QWEN3_5, 1024), (QWEN3_5_TP8, 64), (QWEN3, 8192), (QWEN3, 1))
Job = tuple[Shape, str, Values]


def launches(shape: Shape, stage: str, tokens: int) -> Iterator[Values]:
    """Launches worth trying for a stage and a mean number of rows per expert."""
    mean = tokens * shape.top_k / shape.experts
    if mean <= 0.25:
        for n, warps, depth in product((16, 32, 64), (1, 2, 4), (4, 5, 7)):
            one = {"schedule": "rows", "block_m": 1, "block_n": n, "num_warps": warps, "num_stages": depth}
            yield from ({**one, "block_k": k} for k in (128, 256)) if stage == "gate_up" else (one,)
        return
    heights = (16,) if mean <= 4 else (16, 32, 64) if mean <= 40 else (64, 128)
    columns = (32, 64, 128) if mean <= 4 else (64, 128, 256)
    for m, n, warps, depth in product(heights, columns, (4, 8), (3, 4, 5)):
        launch = {"block_m": m, "block_n": n, "num_warps": warps, "num_stages": depth}
        if m * n > 128 * 256 or (m < 64 and (warps == 8 or n == 256)) or m * n // warps > 4096:
            continue
        schedule = "experts" if mean <= 40 else "tiles"
        if stage == "gate_up":
            yield from ({"schedule": schedule, **launch, "block_k": k} for k in ((64, 128) if m < 64 else (64,)))
        elif m * n <= 128 * 128:
            yield {"schedule": schedule, **launch}
    if mean > 4:
        last = {"block_m": 64, "block_n": 128, "num_warps": 8, "num_stages": 4}
        own = {"schedule": "resident"} if stage == "down" else {"schedule": "specialised", "block_k": 64}
        yield {**own, **last}


def compile_one(job: Job) -> str | None:
    """Fill Triton's cache; returns the reason when a variant does not compile."""
    shape, stage, launch = job
    order, offsets = torch.zeros(64, dtype=torch.int32), torch.zeros(shape.experts + 1, dtype=torch.int32)
    bf16 = {"dtype": torch.bfloat16}
    try:
        device = SimpleNamespace(multi_processor_count=132)
        with mock.patch("torch.cuda.get_device_properties", return_value=device), compiled_launches():
            if stage == "gate_up":
                weight = torch.empty(shape.experts, 2 * shape.share, shape.hidden, **bf16)
                kernel = shape.kernel("expert_gate_up_sequential", launch)
                kernel.expert_gate_up(torch.empty(64 // shape.top_k, shape.hidden, **bf16), weight, order, offsets)
            else:
                weight = torch.empty(shape.experts, shape.hidden, shape.share, **bf16)
                kernel = shape.kernel("expert_down_tree", launch)
                kernel.expert_down(torch.empty(64, shape.share, **bf16), weight, order, offsets)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def measure(shape: Shape, tokens: int, stage: str, tried: list[Values]) -> bool:
    """Print the fastest launches of a stage; whether all ran and the bits of all are those of the first."""
    first, found = None, []
    for launch in tried:
        try:
            layer = Layer(shape, tokens, {stage: launch})
            run, out = (layer.run_gate_up, layer.projected) if stage == "gate_up" else (layer.run_down, layer.rows)
            mine, _ = harness.paired(harness.graph(run), lambda: None, 12)
        except Exception as refused:
            print(stage, launch, "refused", str(refused)[:80])
            continue
        first = out.clone() if first is None else first
        found.append((mine, differing(out, first), launch))
    for mine, different, launch in sorted(found, key=lambda f: f[0])[:5]:
        print(f"{stage} {shape.name} T={tokens}: {mine:.4f} ms, {different} differing, {launch}")
    equal = all(different == 0 for _, different, _ in found)
    print(f"{stage} {shape.name} T={tokens}: {len(found)} launches, bits of all equal: {equal}", flush=True)
    return equal and len(found) == len(tried)


def schedules(shape: Shape, stage: str, tokens: int) -> Iterator[Values]:
    """One launch of tiles, and the schedule for many rows."""
    tried = list(launches(shape, stage, tokens))
    yield next(launch for launch in tried if launch["block_m"] == 64 and launch["block_n"] == 128)
    yield tried[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", action="store_true", help="only one launch of each schedule, for many rows")
    torch.set_num_threads(1)
    wanted, cases = launches, CASES
    if parser.parse_args().schedules:
        wanted, cases = schedules, ((QWEN3_5, 8192), (QWEN3_5, 2048), (QWEN3, 8192))
    jobs = [
        (shape, stage, launch)
        for shape, t in cases
        for stage in ("gate_up", "down")
        for launch in wanted(shape, stage, t)
    ]
    unique = list({repr((j[0].hidden, j[0].share, j[0].experts, *j[1:])): j for j in jobs}.values())
    with multiprocessing.get_context("fork").Pool(min(len(unique), os.cpu_count() or 1)) as pool:
        refused = pool.map(compile_one, unique, chunksize=1)
    for (shape, stage, launch), reason in zip(unique, refused, strict=True):
        if reason:
            print("does not compile", shape.name, stage, launch, reason)
    equal = not any(refused)
    bad = {repr(job) for job, reason in zip(unique, refused, strict=True) if reason}
    for shape, tokens in cases:
        for stage in ("gate_up", "down"):
            tried = [x for x in wanted(shape, stage, tokens) if repr((shape, stage, x)) not in bad]
            equal &= measure(shape, tokens, stage, tried)
    sys.exit(not equal)


if __name__ == "__main__":
    main()
