"""What compiling costs: CPU seconds of cold processes on the real contracts, and growth with the number of regions."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.harness import save
from isoexec_compiler import pipeline, registry
from isoexec_compiler.registry import Family, Field, Site

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = 5


def cpu_seconds(*arguments: str) -> float:
    """Median user plus system seconds of a fresh `isoexec` process."""

    def once() -> float:
        before = os.times()
        subprocess.run(
            [sys.executable, "-m", "isoexec_compiler", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    once()
    return statistics.median(once() for _ in range(ROUNDS))


def synthetic(regions: int) -> bytes:
    """A contract with this many regions, of a family made for the purpose."""
    names = [f"norm_{i}" for i in range(regions)]
    attributes = {"width": 1024, "eps": 1e-06, "gamma": "plain"}
    registry.families()["synthetic"] = Family(  # type: ignore[index]
        name="synthetic",
        doc="As many norms as asked for.",
        config={"hidden_size": Field(type="int", doc="width")},
        layer_kinds=("norm",),
        sites=lambda config, layers: tuple(Site(name=n, op="rms_norm", attributes=attributes) for n in names),
        model_types=(),
        from_hf=lambda config: ({}, ()),
    )
    return json.dumps(
        {
            "isoexec": 1,
            "contract": "synthetic",
            "model": {
                "family": "synthetic",
                "dtype": "bf16",
                "config": {"hidden_size": 1024},
                "layers": {"pattern": ["norm"], "repeat": 1},
            },
            "targets": ["sm90", "cpu"],
            "runtimes": {
                "engine": {"use": "vllm", "version": "0.26.0", "cases": ["engine_prefill", "engine_decode"]},
                "trainer": {"use": "megatron", "version": "0.19.2", "cases": ["trainer_fwd", "trainer_score"]},
            },
            "regions": {name: {"op": "rms_norm", **attributes} for name in names},
            "composition": [
                {"region": n, "cases": "all", "use": "rms_norm_rows", "launch": {"sm90": {"rows": 8, "num_warps": 4}}}
                for n in names
            ],
            "claims": [{"topology": "tp", "sizes": [1, 2, 4, 8], "across": ["trainer", "engine"]}],
        }
    ).encode()


def in_process(regions: int) -> tuple[float, float]:
    """Median CPU seconds from bytes to a package of this many regions, and to verify it on disk."""
    data = synthetic(regions)
    compiling, verifying = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            start = time.process_time()
            contract, problems = pipeline.load(data, "synthetic.json")
            assert contract is not None, problems
            package = pipeline.build(contract)
            compiling.append(time.process_time() - start)
            pipeline.save(package, Path(folder) / "synthetic")
            start = time.process_time()
            assert pipeline.verify(package, Path(folder) / "synthetic") == ((), ())
            verifying.append(time.process_time() - start)
    return statistics.median(compiling), statistics.median(verifying)


def row(name: str, seconds: float, goal: str, peer: str | None = None, peer_seconds: float | None = None) -> dict:
    return {
        "name": name,
        "ours_ms": round(seconds * 1e3, 1),
        "peer": peer,
        "peer_ms": None if peer_seconds is None else round(peer_seconds * 1e3, 1),
        "ratio": None if peer_seconds is None else round(seconds / peer_seconds, 2),
        "floor_ms": None,
        "goal": goal,
    }


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as out:
        for path in sorted((ROOT / "contracts").glob("*.yaml")):
            seconds = cpu_seconds("compile", str(path), "--output", out)
            rows.append(row(f"compile {path.stem}, cold, CPU", seconds, "< 1000"))
            seconds = cpu_seconds("verify", str(path))  # the package of the repository, with its evidence
            rows.append(row(f"verify {path.stem}, cold, CPU", seconds, "< 500"))
    times = {regions: in_process(regions) for regions in (10, 100, 1000)}
    for regions in (100, 1000):
        for what, index in (("compile", 0), ("verify", 1)):
            ten = times[10][index] * regions / 10
            rows.append(
                row(f"{what} {regions} regions", times[regions][index], "<= 1.0", f"{regions // 10} x 10 regions", ten)
            )
    save("compiler", rows)


if __name__ == "__main__":
    main()
