"""Paired timing on a CUDA device, and result files: what every benchmark here shares.

A row is `{name, ours_ms, peer, peer_ms, ratio, floor_ms, goal}`; times are medians of paired runs in one process.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
Row = Mapping[str, Any]


def graph(function: Callable[[], object], repeats: int = 1) -> Callable[[], None]:
    """`function`, captured `repeats` times over into one CUDA graph after a warm-up; calling it replays the graph.

    What it returns keeps `function`: the tensors that the graph reads must outlive it.
    """
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(repeats):
            function()

    def replay(_: Callable[[], object] = function) -> None:
        captured.replay()

    return replay


def paired(ours: Callable[[], object], peer: Callable[[], object], rounds: int = 25) -> tuple[float, float]:
    """Median milliseconds of `ours` and of `peer`, run in turn so that both meet the same clocks."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for function, found in zip((ours, peer), times, strict=True):
            found.append(once(function))
    return statistics.median(times[0][rounds // 5 :]), statistics.median(times[1][rounds // 5 :])


def once(function: Callable[[], object]) -> float:
    """Milliseconds of one call, by device events."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def row(name: str, ours: float, peer: str, peer_ms: float, floor: float | None, goal: str) -> Row:
    """One row; `ratio` is ours over the peer."""
    return {
        "name": name,
        "ours_ms": round(ours, 5),
        "peer": peer,
        "peer_ms": round(peer_ms, 5),
        "ratio": round(ours / peer_ms, 3),
        "floor_ms": None if floor is None else round(floor, 5),
        "goal": goal,
    }


def machine() -> str:
    """The device, or the processor where there is none."""
    try:
        import torch

        if torch.cuda.is_available():
            return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    except ImportError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Versions of what a time depends on, where installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "vllm", "fla", "megatron.core"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", "unknown"))
    return found


def write(name: str, rows: Iterable[Row], folder: Path = RESULTS) -> Path:
    """Write `<folder>/<name>.json`: rows, with the machine, the versions and the command they come from."""
    script = f"python -m bench.{Path(sys.argv[0]).stem}"
    command = " ".join([script, *sys.argv[1:]])
    data = {"machine": machine(), "versions": versions(), "command": command, "rows": list(rows)}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def save(name: str, rows: Iterable[Row], folder: Path = RESULTS) -> Path:
    """As `write`, and print the rows."""
    listed = list(rows)
    for r in listed:
        print("  ".join(str(r[key]) for key in ("name", "ours_ms", "peer", "peer_ms", "ratio", "floor_ms", "goal")))
    return write(name, listed, folder)
