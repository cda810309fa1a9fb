"""What guard and ledger cost on a CPU: imports, installation, one region call, one step.

usage: python bench/guard_overhead.py GENERATED CONTRACT [SAVE.json]

A norm of 8 rows, about the cheapest region there is, is timed bare (the function of the kernel file) and bound (behind
the opaque operator, counted). The ledger's share of that call bounds its share of any step; the guard has no work in a
forward, and neither has any work per token.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def seconds(action: Callable[[], Any], calls: int, rounds: int = 15) -> float:
    """Median time of one call."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            action()
        times.append((time.perf_counter() - began) / calls)
    return statistics.median(times)


def main() -> None:
    torch.set_num_threads(1)
    generated, name = sys.argv[1:3]
    sys.path.insert(0, generated)
    began = time.perf_counter()
    guard = importlib.import_module(f"{name}.guard")
    regions = importlib.import_module(f"{name}.regions")
    imported = time.perf_counter() - began
    package = importlib.import_module(f"{name}.package").load()
    observed = guard.Observed(
        side="trainer", distribution="megatron-core", sizes={"tp": 1, "sp": "off"}, dtype=package.dtype
    )
    began = time.perf_counter()
    guard.install(observed)
    installed = time.perf_counter() - began
    x = torch.randn(8, package.model["hidden_size"]).to(package.dtype)
    weight = x[0].clone()
    bare = regions.BOUND.table["attn_norm", "rms_norm"]
    with torch.no_grad():
        direct = seconds(lambda: bare(x, weight), 300)
        bound = seconds(lambda: regions.ops.rms_norm(x, weight, "attn_norm"), 300)
        regions.BOUND.table["attn_norm", "rms_norm"] = lambda rows, gamma: torch.empty_like(rows)
        operator = seconds(lambda: regions.ops.rms_norm(x, weight, "attn_norm"), 2000)
        allocation = seconds(lambda: torch.empty_like(x), 2000)
        regions.BOUND.table["attn_norm", "rms_norm"] = bare
    ledger = regions.BOUND.ledger
    counted = seconds(lambda: ledger.ran("attn_norm"), 5000)
    step = seconds(lambda: guard.step(1), 3, 5)
    calls = sum(package.multiplicity().values())
    found = {
        "import_ms": imported * 1e3,
        "install_ms": installed * 1e3,
        "region_bare_us": direct * 1e6,
        "region_bound_us": bound * 1e6,
        "operator_us": (operator - allocation) * 1e6,
        "ledger_us": counted * 1e6,
        "ledger_percent_of_the_cheapest_region": counted / direct * 100,
        "step_check_ms": step * 1e3,
        "region_calls_per_forward": calls,
        "ledger_us_per_forward": calls * counted * 1e6,
        "operators_us_per_forward": calls * (operator - allocation) * 1e6,
    }
    text = json.dumps({key: round(value, 3) for key, value in found.items()}, indent=1)
    print(text)
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(text + "\n")


if __name__ == "__main__":
    main()
