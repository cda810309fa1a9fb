"""The promise on a real device: vLLM with CUDA graphs and Megatron-core at a model's sizes, random weights.

usage: python -m tests.gpu.e2e_h200 --out DIR [--generated generated] [--contract qwen3_0_6b] [--repeat 0]
       [--requests 448] [--tokens 256] [--phases model,bound,score,trace,compare_traces,stock,score_stock]

Needs vLLM and Megatron-core of the contract's versions and one H200. With --repeat the contract's pattern of layers is
taken so many times, and the package goes to --generated. Each phase is a process of its own, so that its memory is free
for the next; results accumulate in DIR/report.json, of which `e2e_page` makes a table. Exit code 1 when a
log-probability or row differs. Stock Megatron-core is there for the dense family.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from bench import harness
from examples import tiny
from tests.gpu import slices, speeds
from tests.gpu.e2e_trainer import DEVICE, rows_of, trainer

PHASES = ("model", "bound", "score", "trace", "compare_traces", "stock", "score_stock")
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "max_num_seqs": 256,
    "enable_prefix_caching": True,
    "gpu_memory_utilization": 0.5,
    "disable_log_stats": True,
    # Up to the tokens of a step: a step that is not captured waits for the host, ours and the stock engine's alike.
    "compilation_config": {
        "cudagraph_capture_sizes": [1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 768, 1024, 1280, 1536, 1792, 2048]
    },
}
HYBRID = {"max_num_batched_tokens": 4096}  # no less than a block of its cache
STOCK_HYBRID = {"mamba_ssm_cache_dtype": "float32", "additional_config": {"gdn_prefill_backend": "triton"}}
ROWS = 8192  # tokens scored at once


def document(args: argparse.Namespace) -> dict[str, Any]:
    text = (Path(args.generated) / args.contract / "contract.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def prompts(args: argparse.Namespace) -> list[list[int]]:
    """1 to 400 tokens, a third with a long common beginning."""
    return tiny.prompts(args.requests, document(args)["model"]["config"]["vocab_size"], 400)


def model(args: argparse.Namespace) -> dict[str, Any]:
    if args.repeat:
        slices.compiled(Path("contracts") / f"{args.contract}.yaml", args.repeat, Path(args.generated))
    tiny.write_model(Path(args.out) / "model", document(args), device=DEVICE)
    versions = {name: version(name) for name in ("torch", "triton", "vllm", "megatron-core")}
    command = f"python -m tests.gpu.e2e_h200 --contract {args.contract} --repeat {args.repeat}"
    return {"machine": harness.machine(), "versions": versions, "command": command}


def engine(args: argparse.Namespace, bound: bool, **more: Any) -> Any:
    """vLLM in this process, stock or bound."""
    from vllm import LLM

    hybrid = "gdn" in document(args)["model"]["layers"]
    arguments = {**ENGINE, "model": str(Path(args.out) / "model"), **(HYBRID if hybrid else {}), **more}
    if bound:
        settings = importlib.import_module(f"{args.contract}.adapters.vllm_settings")
        return LLM(**settings.engine_arguments(**arguments))
    backend = {"attention_backend": "TRITON_ATTN"} if DEVICE == "cuda" else {}
    return LLM(**arguments, **backend, **(STOCK_HYBRID if hybrid else {}), dtype="bfloat16")


def sample(llm: Any, requests: list[list[int]], tokens: int, *, warm: bool = True) -> dict[str, Any]:
    """Sequences, fp32 log-probabilities of the sampled tokens, prefix hits, and the rate."""
    if warm:  # other prompts of the same lengths, long enough that as many run at once: kernels compile, no prefix hits
        speeds.generate(llm, [r[::-1] for r in requests], 64)
    began = time.monotonic()
    outputs = speeds.generate(llm, requests, tokens)
    seconds = time.monotonic() - began
    ids = [list(o.outputs[0].token_ids) for o in outputs]
    logprobs = [
        [d[t].logprob for d, t in zip(o.outputs[0].logprobs, tokens_, strict=True)]
        for o, tokens_ in zip(outputs, ids, strict=True)
    ]
    return {
        "prompts": requests,
        "completions": ids,
        "logprobs": torch.tensor(logprobs, dtype=torch.float64).float(),
        "cached": sum(o.num_cached_tokens or 0 for o in outputs),
        "rate": len(requests) * tokens / seconds,
    }


def rollout(args: argparse.Namespace, bound: bool) -> dict[str, Any]:
    began = time.monotonic()
    llm = engine(args, bound)
    up = time.monotonic() - began
    found = sample(llm, prompts(args), args.tokens)
    name = "bound" if bound else "stock"
    if bound:
        llm.collective_rpc("isoexec_first_forward", args=("engine_decode",))
    torch.save(found, Path(args.out) / f"{name}.pt")
    sampled = found["logprobs"].numel()
    times = {f"engine: {sampled:,} tokens sampled, {args.requests} requests": sampled / found["rate"] * 1e3}
    if DEVICE == "cuda":
        times |= speeds.of_engine(llm, document(args)["model"]["config"]["vocab_size"])
    return {
        f"{name}_tokens_per_s": round(found["rate"]),
        f"{name}_engine_up_s": round(up, 1),
        f"{name}_cached_prompt_tokens": found["cached"],
        f"{name}_engine": times,
    }


@torch.no_grad()
def score(args: argparse.Namespace, bound: bool) -> dict[str, Any]:
    """Score the samples of the engine of the same kind; count differing bit patterns."""
    name = "bound" if bound else "stock"
    found = torch.load(Path(args.out) / f"{name}.pt")
    adapter, network = trainer(args, bound)
    sequences = [p + c for p, c in zip(found["prompts"], found["completions"], strict=True)]
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
    differ, apart, at = 0, [], 0
    while at < len(order):
        longest = len(sequences[order[min(len(order), at + 8) - 1]])
        group = order[at : at + max(1, min(8, ROWS // longest))]
        at += len(group)
        longest = max(len(sequences[i]) for i in group)
        tokens = torch.tensor([sequences[i] + [0] * (longest - len(sequences[i])) for i in group], device=DEVICE)
        rows = rows_of(adapter, network, bound, tokens)
        for place, i in enumerate(group):
            first = len(found["prompts"][i]) - 1
            ours, theirs = rows[place, first : first + args.tokens].cpu(), found["logprobs"][i]
            differ += int((ours.contiguous().view(torch.int32) != theirs.contiguous().view(torch.int32)).sum())
            apart.append((ours - theirs).abs())
    distances = torch.cat(apart)
    return {
        f"{name}_differ": differ,
        f"{name}_of": distances.numel(),
        f"{name}_mean": float(distances.mean()),
        f"{name}_max": float(distances.max()),
        f"{name}_trainer": speeds.of_trainer(partial(rows_of, adapter, network, bound), DEVICE),
    }


def trace(args: argparse.Namespace) -> dict[str, Any]:
    """Row digests of every region, eager engine, 16 requests; written for `compare_traces`."""
    llm = engine(args, True, enforce_eager=True)
    llm.collective_rpc("isoexec_trace", args=(True,))
    found = sample(llm, prompts(args)[:16], 32, warm=False)
    (rank,) = llm.collective_rpc("isoexec_trace", args=(False,))
    torch.save({**found, "digests": rank["digests"]}, Path(args.out) / "trace.pt")
    return {}


@torch.no_grad()
def compare_traces(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of the traced engine that the trainer does not make."""
    found = torch.load(Path(args.out) / "trace.pt")
    adapter, network = trainer(args, True)
    tracing = importlib.import_module(f"{args.contract}.trace")
    with tracing.collecting() as seen:
        for prompt, completion in zip(found["prompts"], found["completions"], strict=True):
            adapter.score(network, torch.tensor([prompt + completion], device=DEVICE))
    engine_rows = {region: torch.tensor(rows) for region, rows in found["digests"].items()}
    missing = tracing.missing(engine_rows, {region: rows.cpu() for region, rows in seen.digests.items()})
    return {"rows_missing": missing, "rows_of": sum(map(len, engine_rows.values()))}


RUN = {
    "model": model,
    "bound": lambda args: rollout(args, True),
    "score": lambda args: score(args, True),
    "trace": trace,
    "compare_traces": compare_traces,
    "stock": lambda args: rollout(args, False),
    "score_stock": lambda args: score(args, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--generated", default="generated")
    parser.add_argument("--contract", default="qwen3_0_6b")
    parser.add_argument("--repeat", type=int, default=0)
    parser.add_argument("--requests", type=int, default=448)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--phases", default=",".join(PHASES))
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    args = parser.parse_args()
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    report = out / "report.json"
    if args.phase:
        sys.path.insert(0, str(Path(args.generated).resolve()))
        found = RUN[args.phase](args)
        known = json.loads(report.read_text()) if report.exists() else {}
        report.write_text(json.dumps(known | found, indent=1, sort_keys=True) + "\n")
        sys.stdout.flush()
        os._exit(0)
    for phase in args.phases.split(","):
        began = time.monotonic()
        environment = {**os.environ, **QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.e2e_h200", *sys.argv[1:], "--phase", phase]
        code = subprocess.run(command, env=environment, check=False).returncode
        print(f"{phase}: exit {code}, {time.monotonic() - began:.1f} s", flush=True)
    results = json.loads(report.read_text())
    print(json.dumps(results, indent=1))
    wrong = results.get("bound_differ", 1) or sum(results.get("rows_missing", {}).values())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
