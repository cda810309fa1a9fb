"""The engine of the demo, a process of its own. usage: python -m examples.demo_engine FOLDER CONTRACT

An empty CONTRACT starts the stock engine.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
}
ARGUMENTS = {
    "skip_tokenizer_init": True,
    "max_model_len": 128,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 64,
    "enforce_eager": True,
    "enable_prefix_caching": True,
    "block_size": 16,
}


def wait_for(path: Path, seconds: float = 300) -> Path:
    """The path, once it exists. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(path)
        time.sleep(0.05)
    return path


def publish(path: Path, value: Any) -> None:
    """Save so that a reader sees the whole file or none."""
    torch.save(value, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def rollouts(llm: Any, prompts: list[list[int]], samples: int, tokens: int) -> dict[str, Any]:
    """`samples` completions of every prompt and the engine's log-probabilities of their tokens, fp32."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=1.0, max_tokens=tokens, logprobs=0, ignore_eos=True, detokenize=False)
    requests = [{"prompt_token_ids": prompt} for prompt in prompts for _ in range(samples)]
    outputs = [output.outputs[0] for output in llm.generate(requests, params, use_tqdm=False)]
    return {
        "prompts": [request["prompt_token_ids"] for request in requests],
        "completions": [list(o.token_ids) for o in outputs],
        "logprobs": torch.tensor(
            [[d[t].logprob for d, t in zip(o.logprobs, o.token_ids, strict=True)] for o in outputs], dtype=torch.float64
        ).float(),
    }


def main() -> None:
    folder, contract = Path(sys.argv[1]), sys.argv[2]
    job = json.loads((folder / "job.json").read_text())
    os.environ |= QUIET
    torch.set_num_threads(1)
    sys.path.insert(0, job["generated"])
    from vllm import LLM

    arguments = {**ARGUMENTS, "model": str(folder / "model")}
    if not contract:
        llm = LLM(**arguments)
        publish(folder / "stock.rollouts", rollouts(llm, job["prompts"], job["samples"], job["tokens"]))
        os._exit(0)
    settings = importlib.import_module(f"{contract}.adapters.vllm_settings")
    driver = importlib.import_module(f"{contract}.adapters.vllm_driver")
    transports = importlib.import_module(f"{contract}.transports")
    llm = LLM(**settings.engine_arguments(**arguments))
    agreement = driver.shake(llm, transports.Folder(path=folder, side="engine", seconds=300))
    for step in range(job["steps"] + 1):
        if step:
            theirs = torch.load(wait_for(folder / f"{step}.fingerprints"))
            driver.sync(llm, agreement, str(folder / f"{step}.safetensors"), theirs, step)
            llm.collective_rpc("isoexec_step", args=(step,))
        publish(folder / f"{step}.rollouts", rollouts(llm, job["prompts"], job["samples"], job["tokens"]))
    for case in ("engine_prefill", "engine_decode"):
        llm.collective_rpc("isoexec_first_forward", args=(case,))
    driver.report(llm, str(folder / "engine.report.json"), syncs=job["steps"], steps=job["steps"])
    os._exit(0)


if __name__ == "__main__":
    main()
