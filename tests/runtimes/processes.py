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
    """Start one process for each rank and wait. Raises AssertionError with the last output of a rank that fails."""
    out = Path(job["out"])
    file = out / f"{job['name']}.json"
    file.write_text(json.dumps(job))
    running = []
    for rank in range(ranks):
        log = (out / f"{job['name']}.{rank}.log").open("w")
        command = [sys.executable, "-W", "ignore", str(HERE / script), str(file), str(rank)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        running.append(
            (subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True), log)
        )
    for rank, (process, log) in enumerate(running):
        try:
            code = process.wait(SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the workers that it started
            log.close()
        text = Path(log.name).read_text()
        assert code == 0, f"{job['name']}, rank {rank}, exited with {code}:\n{text[-4000:]}"


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
