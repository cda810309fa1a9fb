"""One engine process and one trainer process for many cells: starting them is what costs."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from examples import tiny
from isoexec_compiler import pipeline
from tests.runtimes.processes import run_engine, run_trainer

CONTRACTS = Path(__file__).resolve().parents[2] / "contracts"
PLAIN = {"enforce_eager": True, "max_num_seqs": 32, "enable_prefix_caching": False, "max_logprobs": -1}
SMALL = {**PLAIN, "block_size": 16}
# Name, engine arguments, how to sample. Each is one way of scheduling the same requests.
RUNS = (
    {"name": "together", "engine": PLAIN, "whole": True, "max_tokens": 12},
    {"name": "one_at_a_time", "engine": PLAIN, "alone": True, "max_tokens": 8},
    {"name": "arriving_and_leaving", "engine": PLAIN, "staggered": True, "uneven": True, "max_tokens": 16},
    {
        "name": "chunks_of_32",
        "engine": {**PLAIN, "max_num_batched_tokens": 32},
        "prompt_logprobs": True,
        "max_tokens": 12,
    },
    {"name": "chunks_of_100", "engine": {**PLAIN, "max_num_batched_tokens": 100, "block_size": 48}, "max_tokens": 12},
    {
        "name": "prefix_cold_then_warm",
        "engine": {**SMALL, "enable_prefix_caching": True, "max_num_batched_tokens": 48, "max_num_seqs": 5},
        "repeat": 2,
        "max_tokens": 12,
    },
    {
        "name": "prefix_page_32",
        "engine": {**PLAIN, "enable_prefix_caching": True, "block_size": 32},
        "repeat": 2,
        "max_tokens": 8,
    },
    {
        "name": "preempted",
        "engine": {**SMALL, "num_gpu_blocks_override": 14, "max_num_batched_tokens": 64},
        "max_tokens": 24,
    },
)
RUNS_FP32 = (
    {"name": "fp32_together", "engine": PLAIN, "max_tokens": 12},
    {
        "name": "fp32_chunks",
        "engine": {**SMALL, "max_num_batched_tokens": 32},
        "prompt_logprobs": True,
        "max_tokens": 12,
    },
)
LAYOUTS = {"tp1": (1, False), "tp2": (2, False), "tp2+sp": (2, True), "tp4+sp": (4, True)}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The matrix: what tests recorded as cells, also when other processes ran them."""
    reports = (r for kind in ("passed", "failed") for r in terminalreporter.stats.get(kind, ()))
    lines = [line for r in reports if r.when == "call" for name, line in r.user_properties if name == "cell"]
    if lines:
        terminalreporter.section("differing log-probabilities and row digests, engine against trainer")
        for line in lines:
            terminalreporter.write_line(str(line))


class Workplace:
    """A generated package of a tiny contract in one dtype, with a model and a folder for results."""

    def __init__(self, root: Path, dtype: str, base: str = "tiny_dense") -> None:
        self.contract = base if dtype == "bf16" else f"{base}_{dtype}"
        text = (CONTRACTS / f"{base}.yaml").read_text()
        text = text.replace(f"contract: {base}", f"contract: {self.contract}").replace("dtype: bf16", f"dtype: {dtype}")
        if dtype != "bf16":
            text = re.sub(r"    launch:\n(?: {6,}.*\n)+", "", text.replace("targets: [sm90, cpu]", "targets: [cpu]"))
        self.source = root / f"{self.contract}.yaml"
        self.source.write_text(text)
        self.generated, self.model, self.out = root / "generated", root / "model", root / "out"
        self.out.mkdir()
        compile_contract(self.source, self.generated)
        self.document = json.loads((self.generated / self.contract / "contract.json").read_text())
        self.prompts = tiny.prompts(20, self.document["model"]["config"]["vocab_size"], 60)
        tiny.write_model(self.model, self.document)

    def fingerprints(self, ranks: list[Any] | None = None) -> dict[str, Any]:
        """Fingerprints of the checkpoint, or of what the ranks of a runtime hold."""
        sys.path.insert(0, str(self.generated))
        weights = importlib.import_module(f"{self.contract}.weights")
        sys.path.remove(str(self.generated))
        whole = [weights.whole(name, t) for name, t in load_file(self.model / "model.safetensors").items()]
        merged: dict[str, Any] = weights.merge(ranks or [weights.fingerprints(whole)])
        return merged

    def job(self, name: str, **more: Any) -> dict[str, Any]:
        places = {key: str(getattr(self, key)) for key in ("generated", "model", "out")}
        return {"name": name, "contract": self.contract, **places, **more}

    def engine(
        self, name: str, *runs: dict[str, Any], contract: str | None = None, **environment: str
    ) -> dict[str, Any]:
        job = self.job(name, runs=list(runs), prompts=self.prompts, vocab=256)
        return run_engine(job if contract is None else {**job, "contract": contract}, **environment)

    def trainer(self, name: str, *runs: str, layout: str = "tp1", **more: Any) -> list[dict[str, Any]]:
        tp, sp = LAYOUTS[layout]
        more = {"batchings": ["alone", "padded", "packed"], **more}
        return run_trainer(self.job(name, runs=list(runs), tp=tp, sp=sp, **more))


def compile_contract(source: Path, generated: Path) -> None:
    """What `isoexec compile` does."""
    contract, problems = pipeline.load(source.read_bytes(), source.name)
    assert contract is not None, problems
    pipeline.save(pipeline.build(contract), generated / contract.name)


@pytest.fixture(scope="session")
def bf16(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("bf16"), "bf16")


@pytest.fixture(scope="session")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    return Workplace(tmp_path_factory.mktemp("fp32"), "fp32")


@pytest.fixture(scope="session")
def sampled(bf16: Workplace) -> dict[str, Any]:
    """What one engine process sampled, scheduled in every way of RUNS."""
    return bf16.engine("engine", *RUNS)


@pytest.fixture(scope="session")
def scored(bf16: Workplace, sampled: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """What the trainer computed for all of it, on every layout: {layout: results of each rank}."""
    names = [run["name"] for run in RUNS]
    found = {"tp1": bf16.trainer("trainer_tp1", *names, whole="together")}
    for layout in ("tp2", "tp2+sp", "tp4+sp"):
        found[layout] = bf16.trainer(f"trainer_{layout}", *names[:2], *names[3:5], layout=layout)
    return found


@pytest.fixture(scope="session")
def sampled_fp32(fp32: Workplace) -> dict[str, Any]:
    return fp32.engine("engine_fp32", *RUNS_FP32)
