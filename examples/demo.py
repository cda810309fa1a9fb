"""Stock frameworks disagree, bound ones do not: a tiny Qwen3 on a CPU, sampled by vLLM and trained by Megatron-core.

usage: python -m examples.demo [PLOT.png]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples import tiny
from isoexec_compiler import pipeline

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "tiny_dense"
STEPS, SAMPLES, TOKENS, PROMPTS = 5, 4, 24, 8


class DemoError(RuntimeError):
    """A process of the demo ended badly; the message is the end of its log."""


def start(folder: Path, script: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A process of the demo, its output in the folder."""
    log = (folder / f"{script}.{'.'.join(filter(None, arguments[1:])) or 'stock'}.log").open("w")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", f"examples.{script}", *arguments]
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, cwd=ROOT)


def wait_for(folder: Path, name: str, processes: list[subprocess.Popen[bytes]]) -> Any:
    """What a process published under `name`. Raises DemoError when one of them ends badly before."""
    while not (folder / name).exists():
        if any(process.poll() not in (None, 0) for process in processes):
            logs = "\n".join(log.read_text()[-1500:] for log in sorted(folder.glob("*.log")))
            raise DemoError(f"waiting for {name}:\n{logs}")
        time.sleep(0.1)
    return torch.load(folder / name)


def prepare(folder: Path, steps: int) -> None:
    """Compile the contract, write the model and the job."""
    source = ROOT / "contracts" / f"{CONTRACT}.yaml"
    contract, problems = pipeline.load(source.read_bytes(), source.name)
    if contract is None:
        raise DemoError("\n".join(problem.message for problem in problems))
    pipeline.save(pipeline.build(contract), folder / "generated" / CONTRACT)
    document = json.loads((folder / "generated" / CONTRACT / "contract.json").read_text())
    tiny.write_model(folder / "model", document)
    job = {
        "generated": str(folder / "generated"),
        "prompts": tiny.prompts(PROMPTS, document["model"]["config"]["vocab_size"], 40),
        "samples": SAMPLES,
        "tokens": TOKENS,
        "steps": steps,
    }
    (folder / "job.json").write_text(json.dumps(job))


def line(found: dict[str, Any]) -> str:
    return f"{found['differ']:>4} of {found['of']} differ   mean |d| {found['mean']:.1e}   max |d| {found['max']:.1e}"


def plot(path: Path, stock: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    """Mean absolute difference by step; zero has a place of its own below the logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(6, 3.2), layout="constrained")
    axis.axhline(stock["mean"], color="tab:red", label="stock vLLM against stock Megatron-core")
    axis.plot(range(len(steps)), [s["mean"] for s in steps], "o-", color="tab:blue", label="bound to the contract")
    axis.set_yscale("symlog", linthresh=1e-6)
    axis.set_ylim(-2e-7, 1)
    axis.set_xlabel("GRPO step, weights synchronised before each")
    axis.set_ylabel("mean |log p difference|")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=150)


def run(folder: Path, steps: int, said: Callable[[str, str], None]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The stock comparison, and the bound one at every step. `said(doing, done)` hears what starts and what was found.

    Raises DemoError when a process fails.
    """
    processes: list[subprocess.Popen[bytes]] = []
    name = str(folder)
    said("compile the contract, write a random Qwen3", "")
    prepare(folder, steps)
    try:
        said("stock vLLM samples, stock Megatron-core scores", "")
        processes += [start(folder, "demo_engine", name, ""), start(folder, "demo_trainer", name, CONTRACT, "stock")]
        stock = wait_for(folder, "stock.found", processes)
        said("bound vLLM and bound Megatron-core shake hands", f"stock          {line(stock)}")
        processes += [
            start(folder, "demo_engine", name, CONTRACT),
            start(folder, "demo_trainer", name, CONTRACT, "bound"),
        ]
        found = []
        for step in range(steps + 1):
            found.append(wait_for(folder, f"{step}.found", processes))
            done = f"bound, step {step}  {line(found[-1])}   reward {found[-1]['reward']:.3f}"
            said("GRPO: sample, score, update, synchronise, compare", done)
        for process in processes:
            process.wait(120)  # the engine writes its report last
    finally:
        for process in processes:
            process.terminate()
    return stock, found


def main() -> None:
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "demo.png")
    console = Console(highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description:<50}"), BarColumn(), TimeElapsedColumn())
    with tempfile.TemporaryDirectory() as name, Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=STEPS + 4)

        def said(doing: str, done: str) -> None:
            progress.update(bar, advance=1, description=doing)
            if done:
                console.print(done)

        stock, steps = run(Path(name), STEPS, said)
    plot(target, stock, steps)
    total = sum(s["differ"] for s in steps)
    console.print(f"{total} of {sum(s['of'] for s in steps)} log-probabilities differ; plot in {target}")
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
