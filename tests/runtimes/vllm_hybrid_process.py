"""A hybrid engine on its own, in one process. usage: vllm_hybrid_process.py JOB.json RANK

Job: generated, contract, model, out (folder), name, prompts.
Writes OUT/NAME.pt: {"runs": {name: what was sampled}, "scores": {name: log-probabilities of those sequences as
prompts}, "operators": {run: {operator: how often}}, "said": {check: what a refusal said}}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from engine_process import QUIET, close, record, sample
from refusals_process import said

LONGEST = 240
ENGINE = {"skip_tokenizer_init": True, "enforce_eager": True, "disable_log_stats": True, "max_num_seqs": 8}
# One attention page and three states for each of eight sequences, and the null page: every slot serves many sequences.
SLOTS = {**ENGINE, "max_model_len": LONGEST, "num_gpu_blocks_override": 4 * 8 + 1, "enable_prefix_caching": False}
# One sequence at a time is prefilled whole; 37 tokens end anywhere in the 64 of a chunk.
WHOLE, CUT = ({**SLOTS, "max_num_batched_tokens": budget} for budget in (LONGEST, 37))
CACHED = {**ENGINE, "max_model_len": 1800, "max_num_batched_tokens": 1700, "enable_prefix_caching": True}


class Engines:
    """Engines of the job's contract, one after the other, and what they sampled."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.llm = job, None
        self.found: dict[str, Any] = {"runs": {}, "scores": {}, "operators": {}, "said": {}}

    def module(self, name: str) -> Any:
        return importlib.import_module(f"{self.job['contract']}.{name}")

    def start(self, arguments: dict[str, Any], model: str = "") -> None:
        from vllm import LLM

        if self.llm is not None:
            close(self.llm)
        settings = self.module("adapters.vllm_settings")
        self.llm = LLM(**settings.engine_arguments(model=model or self.job["model"], **arguments))

    def run(self, name: str, generate: Callable[[dict[str, Any]], list[Any]] | None = None, **options: Any) -> None:
        """Sample from every prompt of the job; counts the operators that ran."""
        operators: Counter[str] = Counter()
        run = {"max_tokens": 70, **options}
        with self.module("regions").tapped(lambda region, operator, *_: operators.update([operator])):
            outputs = generate(run) if generate else sample(self.llm, run, self.job["prompts"])
        self.found["runs"][name] = record(outputs, self.job["prompts"], False, 256)
        self.found["operators"][name] = operators

    def score(self, name: str, alone: bool) -> None:
        """Every sampled sequence as a prompt."""
        sequences = [s for run in self.found["runs"].values() for s in run["sequences"]]
        outputs = sample(self.llm, {"max_tokens": 1, "prompt_logprobs": True, "alone": alone}, sequences)
        self.found["scores"][name] = record(outputs, sequences, False, 256)["prompt"]


def preempted(engines: Engines, run: dict[str, Any]) -> list[Any]:
    """Every thirteenth step all running requests lose their state and are recomputed, with what they sampled."""
    step, before = Counter[str](), engines.llm.llm_engine.step

    def stepping() -> list[Any]:
        step.update(["steps"])
        if step["steps"] % 13 == 0:
            engines.llm.reset_prefix_cache(reset_running_requests=True)
        outputs: list[Any] = before()
        return outputs

    with patch.object(engines.llm.llm_engine, "step", stepping):
        return sample(engines.llm, run, engines.job["prompts"])


def rounded(engines: Engines) -> Callable[..., Any]:
    """A step that keeps the state between chunks in bf16: a wrong that must be seen."""
    right = engines.module("regions").BOUND.table["gdn_core", "gated_delta_step"]

    def step(*arguments: Any) -> Any:
        out, caches = right(*arguments), arguments[5]
        caches.state.copy_(caches.state.bfloat16())
        return out

    return step


def cached(engines: Engines) -> dict[str, Any]:
    """A prompt of more than a page, cold and then with the states of its first page from the cache."""
    prompt = torch.randint(0, 256, (1700,), generator=torch.Generator().manual_seed(5)).tolist()
    runs = [sample(engines.llm, {"max_tokens": 6}, [prompt]) for _ in range(2)]
    cold, warm = (record(outputs, [prompt], False, 256) for outputs in runs)
    return {"cold": cold["sampled"][0], "warm": warm["sampled"][0], "hit": warm["cached"][0]}


def published(job: dict[str, Any]) -> str:
    """The same model as such models are published: text part of a model that sees, experts in one tensor, sections of
    rotary for three positions."""
    from safetensors.torch import load_file, save_file

    folder, model = Path(job["out"]) / "published", Path(job["model"])
    folder.mkdir()
    text = json.loads((model / "config.json").read_text())
    text["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = load_file(model / "model.safetensors")
    for layer in range(text["num_hidden_layers"]):
        mlp = f"model.layers.{layer}.mlp.experts"
        gate, up, down = (
            [tensors.pop(f"{mlp}.{expert}.{part}_proj.weight") for expert in range(text["num_experts"])]
            for part in ("gate", "up", "down")
        )
        tensors[f"{mlp}.gate_up_proj"] = torch.cat([torch.stack(gate), torch.stack(up)], dim=1)
        tensors[f"{mlp}.down_proj"] = torch.stack(down)
    named = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    named["model.visual.patch_embed.proj.weight"] = torch.zeros(2)
    save_file(named, folder / "model.safetensors")
    return str(folder)


def refusals(engines: Engines) -> dict[str, str]:
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.model_executor.models import qwen3_5

    close(engines.llm)
    engines.llm = None
    found = {}
    unregistered = type("Unregistered", (qwen3_5.QwenGatedDeltaNetAttention,), {})  # no registry exchanges it
    kinds = ["full_attention", "linear_attention", "linear_attention", "linear_attention"]
    with patch.object(qwen3_5, "QwenGatedDeltaNetAttention", unregistered):
        found["stock layer"] = said(lambda: engines.start(WHOLE))
    cleanup_dist_env_and_memory()
    found["another state dtype"] = said(lambda: engines.start({**WHOLE, "mamba_cache_dtype": "float16"}))
    cleanup_dist_env_and_memory()
    found["other layers"] = said(lambda: engines.start({**WHOLE, "hf_overrides": {"layer_types": kinds}}))
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ |= {**QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    torch.set_num_threads(1)
    sys.path.insert(0, job["generated"])
    engines = Engines(job)
    engines.start(WHOLE)
    engines.run("together")
    engines.run("arriving", staggered=True, uneven=True)
    engines.run("preempted", lambda run: preempted(engines, run))
    with patch.dict(engines.module("regions").BOUND.table, {("gdn_core", "gated_delta_step"): rounded(engines)}):
        engines.run("rounded")
    engines.score("whole", alone=True)
    engines.llm.collective_rpc("isoexec_audit", args=(True,))
    sample(engines.llm, {"max_tokens": 3}, job["prompts"])
    engines.found["audit"] = engines.llm.collective_rpc("isoexec_audit", args=(False,))
    for case in ("engine_prefill", "engine_decode"):
        engines.llm.collective_rpc("isoexec_first_forward", args=(case,))
    engines.found["fingerprints"] = engines.llm.collective_rpc("isoexec_fingerprints")
    engines.start(CUT)
    engines.score("cut", alone=False)
    engines.start(WHOLE, published(job))
    engines.score("published", alone=False)
    engines.start(CACHED)
    engines.found["cached"] = cached(engines)
    engines.found["said"] = refusals(engines)
    torch.save(engines.found, Path(job["out"]) / f"{job['name']}.pt")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
