"""Real engines and trainers as processes of their own: jobs in, files of results out."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
SECONDS = 600


def run_script(script: str, job: dict[str, Any], ranks: int = 1, **environment: str) -> None:
    """Run a script of this folder, by one process or by ranks forked from one, and wait.

    Raises AssertionError with the last output if one fails.
    """
    out = Path(job["out"])
    file = out / f"{job['name']}.json"
    file.write_text(json.dumps(job))
    arguments = [script, str(file), "0"] if ranks == 1 else ["forked.py", script, str(file), str(ranks)]
    command = [sys.executable, "-W", "ignore", str(HERE / arguments[0]), *arguments[1:]]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    log = out / f"{job['name']}.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=env, start_new_session=True)
        try:
            code = process.wait(SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers that it started
    assert code == 0, f"{job['name']} exited with {code}:\n{log.read_text()[-4000:]}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_engine(job: dict[str, Any], **environment: str) -> dict[str, dict[str, Any]]:
    """Results of every run of an engine job, by name."""
    run_script("engine_process.py", job, **environment)
    return {run["name"]: torch.load(Path(job["out"]) / f"{run['name']}.pt") for run in job["runs"]}


def run_trainer(job: dict[str, Any], **environment: str) -> list[dict[str, Any]]:
    """Results of a trainer job, one for each rank."""
    job = {"port": free_port(), "sp": False, "tp": 1, "ep": 1, **job}
    job["world"] = max(job["tp"], job["ep"])
    run_script("trainer_process.py", job, job["world"], **environment)
    return [torch.load(Path(job["out"]) / f"{job['name']}.{rank}.pt") for rank in range(job["world"])]
