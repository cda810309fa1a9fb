"""A real engine in its own process: samples in several ways. usage: engine_process.py JOB.json

Job: generated, contract (empty: the stock engine), model, out (folder), runs: a list of
{name, engine: arguments of vllm.LLM, alone: bool, staggered: bool, prompt_logprobs: bool, max_tokens, repeat: int}.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

QUIET = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def engine(job: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """A vLLM engine on the tiny model, with the contract's package if the job names one."""
    from vllm import LLM

    own = {"model": job["model"], "skip_tokenizer_init": True, "max_model_len": 128, "disable_log_stats": True}
    if not job["contract"]:
        return LLM(**own, **arguments)
    settings = importlib.import_module(f"{job['contract']}.adapters.vllm_settings")
    return LLM(**settings.engine_arguments(**own, **arguments))


def close(llm: Any) -> None:
    """Let go of the engine so that another one can be made in this process."""
    from vllm.distributed import cleanup_dist_env_and_memory

    llm.llm_engine.engine_core.shutdown()
    cleanup_dist_env_and_memory()
    gc.collect()


def sample(llm: Any, run: dict[str, Any], prompts: list[list[int]]) -> list[Any]:
    """Outputs in the order of the prompts; half greedy, half at temperature 1; lengths differ when asked for."""
    from vllm import SamplingParams

    requests = [{"prompt_token_ids": p} for p in prompts]
    params = [
        SamplingParams(
            temperature=float(i % 2),
            max_tokens=run["max_tokens"] - (i * 5 % run["max_tokens"] if run.get("uneven") else 0),
            logprobs=-1 if run.get("whole") else 0,
            prompt_logprobs=0 if run.get("prompt_logprobs") else None,
            ignore_eos=True,
            detokenize=False,
        )
        for i in range(len(prompts))
    ]
    if run.get("alone"):
        return [llm.generate([r], [p], use_tqdm=False)[0] for r, p in zip(requests, params, strict=True)]
    if run.get("staggered"):
        return staggered(llm, requests, params)
    return llm.generate(requests, params, use_tqdm=False)


def staggered(llm: Any, requests: list[Any], params: list[Any]) -> list[Any]:
    """One new request every second step: arrivals and departures change the batch all the time."""
    waiting, done = list(range(len(requests))), {}
    step = 0
    while waiting or llm.llm_engine.has_unfinished_requests():
        if waiting and step % 2 == 0:
            i = waiting.pop(0)
            llm.llm_engine.add_request(f"r{i}", requests[i], params[i])
        for output in llm.llm_engine.step():
            if output.finished:
                done[int(output.request_id.split("-")[0][1:])] = output
        step += 1
    return [done[i] for i in range(len(requests))]


def bits(values: list[float]) -> torch.Tensor:
    """Python floats that were fp32, as fp32 again, exactly."""
    return torch.tensor(values, dtype=torch.float64).to(torch.float32)


def record(outputs: list[Any], prompts: list[list[int]], whole: bool, vocab: int) -> dict[str, Any]:
    """Sequences and the engine's log-probabilities of the sampled tokens (and of the prompts, if asked for)."""
    found: dict[str, Any] = {
        "sequences": [],
        "prompts": [len(p) for p in prompts],
        "sampled": [],
        "prompt": [],
        "rows": [],
    }
    for output, prompt in zip(outputs, prompts, strict=True):
        tokens = list(output.outputs[0].token_ids)
        found["sequences"].append(prompt + tokens)
        found["sampled"].append(bits([d[t].logprob for d, t in zip(output.outputs[0].logprobs, tokens, strict=True)]))
        if output.prompt_logprobs:
            found["prompt"].append(
                bits([d[t].logprob for d, t in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)])
            )
        if whole:
            found["rows"].append(
                torch.stack([bits([d[t].logprob for t in range(vocab)]) for d in output.outputs[0].logprobs])
            )
        found.setdefault("cached", []).append(output.num_cached_tokens or 0)
    return found


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ |= QUIET
    if not any(run["engine"].get("tensor_parallel_size") for run in job["runs"]):
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    torch.set_num_threads(1)
    sys.path.insert(0, job["generated"])
    sys.path.insert(0, str(Path(__file__).parent))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (job["generated"], os.environ.get("PYTHONPATH", ""))))
    llm, before = None, None
    for run in job["runs"]:
        began = time.monotonic()
        if llm is None or run["engine"] != before:
            if llm is not None:
                close(llm)
            llm, before = engine(job, run["engine"]), run["engine"]
        up = time.monotonic()
        traced = job["contract"] and not run.get("untraced")
        if traced:
            llm.collective_rpc("isoexec_trace", args=(True,))
        rounds = run.get("repeat", 1)
        outputs = [output for _ in range(rounds) for output in sample(llm, run, job["prompts"])]
        found = record(outputs, job["prompts"] * rounds, bool(run.get("whole")), job["vocab"])
        if traced:
            ranks = llm.collective_rpc("isoexec_trace", args=(False,))
            found["digests"] = {
                region: torch.tensor([d for rank in ranks for d in rank["digests"][region]], dtype=torch.int64)
                for region in ranks[0]["digests"]
            }
            found["computed"] = ranks[0]["tokens"]
        if job["contract"]:
            for case in ("engine_prefill", "engine_decode"):
                llm.collective_rpc("isoexec_first_forward", args=(case,))
            found["fingerprints"] = llm.collective_rpc("isoexec_fingerprints")
            found["report"] = llm.collective_rpc("isoexec_report")
        torch.save(found, Path(job["out"]) / f"{run['name']}.pt")
        print(f"{run['name']}: up {up - began:.1f} s, sampled in {time.monotonic() - up:.1f} s", flush=True)
    close(llm)  # worker processes do not end with this one
    os._exit(0)


if __name__ == "__main__":
    main()
