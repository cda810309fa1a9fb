"""vLLM on two GPUs, CUDA graphs on, against Megatron-core on one: sampled log-probabilities and rows, bit for bit.

usage: python -m tests.gpu.engine_tp2_h200 --out DIR [--contract contracts/qwen3_30b_a3b.yaml] [--repeat 2] [--ranks 2]

A few layers at the model's own sizes, random weights. The engine's ranks share every matrix and reach each other
through peer memory, which is asserted. Rows are digested in forwards larger than any captured graph. Counts go to
DIR/parallel_engine_<contract>.json; exit code 1 when a log-probability or row differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "NCCL_NVLS_ENABLE": "0",  # no NVLink multicast
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # the engine forks its ranks: no CUDA in this process before
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}

import torch

from bench import harness
from examples import tiny
from tests.gpu import e2e_h200, package_calls, slices
from tests.gpu.e2e_trainer import trainer
from tests.support.ahead import compile_ahead
from tests.support.bits import differing

CAPTURED = [1, 4, 32]
ENGINE = {
    "max_model_len": 4096,
    "max_num_batched_tokens": 4096,  # a hybrid's block of its cache is 2288 tokens
    "max_num_seqs": 32,
    "gpu_memory_utilization": 0.3,
    "kv_cache_memory_bytes": 4 << 30,
    "disable_custom_all_reduce": True,
    "compilation_config": {"cudagraph_capture_sizes": CAPTURED},
}
TRACED = 8


def groups_with_peers(worker: Any, contract: str) -> int:
    """How many process groups of this rank of the engine have peer memory."""
    return sum(found is not None for found in sys.modules[f"{contract}.peer_groups"]._FOUND.values())


def sampled(args: argparse.Namespace, vocab: int) -> dict[str, Any]:
    """What the engine samples, and the digests of its rows while it reads other prompts."""
    llm = e2e_h200.engine(args, True, tensor_parallel_size=args.ranks, **ENGINE)
    args.say("engine up")
    found = e2e_h200.sample(llm, tiny.prompts(args.requests, vocab, 300), args.tokens, warm=False)
    llm.collective_rpc("isoexec_first_forward", args=("engine_decode",))
    args.say(f"{found['logprobs'].numel()} tokens sampled")
    peers = llm.collective_rpc(groups_with_peers, args=(args.contract,))
    if min(peers) < 1:
        raise RuntimeError("the engine's ranks have no peer memory")
    traced = [prompt for prompt in tiny.prompts(4 * TRACED, vocab, 300, seed=2) if len(prompt) > max(CAPTURED)][:TRACED]
    llm.collective_rpc("isoexec_trace", args=(True,))
    e2e_h200.sample(llm, traced, 1, warm=False)
    ranks = llm.collective_rpc("isoexec_trace", args=(False,))
    regions = ranks[0]["digests"]
    rows = {region: torch.tensor([d for rank in ranks for d in rank["digests"][region]]).unique() for region in regions}
    args.say("rows digested")
    return found | {"traced": traced, "rows": rows}


@torch.no_grad()
def differences(args: argparse.Namespace, found: dict[str, Any]) -> list[harness.Row]:
    """Counts of what the trainer, on one GPU, makes otherwise than the engine."""
    adapter, network = trainer(args, True)
    args.say("trainer up")
    tracing = importlib.import_module(f"{args.contract}.trace")

    def score(sequence: list[int]) -> torch.Tensor:
        return adapter.score(network, torch.tensor([sequence], device="cuda"))[0]

    differ = 0
    for prompt, completion, theirs in zip(found["prompts"], found["completions"], found["logprobs"], strict=True):
        ours = score(prompt + completion)[len(prompt) - 1 :][: len(completion)]
        differ += differing(ours.cpu().contiguous(), theirs.contiguous())
    with tracing.collecting() as seen:
        for prompt in found["traced"]:
            score(prompt)
    missing = tracing.missing(found["rows"], {region: rows.cpu() for region, rows in seen.digests.items()})
    where = f"{args.contract}, {args.layers} layers, TP{args.ranks} with CUDA graphs against one GPU (counts)"
    args.say(f"{differ} log-probabilities differ, rows that differ: {missing}")
    return [
        harness.row(f"log-probabilities that differ: {where}", differ, "of", found["logprobs"].numel(), None, "0"),
        harness.row(
            f"rows of all regions that differ: {where}",
            sum(missing.values()),
            "of",
            sum(map(len, found["rows"].values())),
            None,
            "0",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--contract", default="contracts/qwen3_30b_a3b.yaml")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--requests", type=int, default=96)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    began = time.monotonic()
    args.say = lambda what: print(f"{time.monotonic() - began:5.1f} s  {what}", flush=True)
    args.generated = args.out / "generated"
    args.contract, document = slices.compiled(Path(args.contract), args.repeat, args.generated)
    args.layers = len(document["model"]["layers"])
    sys.path.insert(0, str(args.generated.resolve()))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    drawing = multiprocessing.get_context("spawn").Process(
        target=tiny.write_model, args=(args.out / "model", document), kwargs={"device": "cuda"}
    )
    drawing.start()
    rows = *CAPTURED, 300, ENGINE["max_num_batched_tokens"]
    ranks = {"tp": args.ranks, "widths": args.ranks}
    compile_ahead(
        [
            *package_calls.calls(args.generated, args.contract, rows, **ranks),
            *package_calls.calls(args.generated, args.contract, rows),
        ]
    )
    drawing.join()
    args.say("weights drawn")
    found = differences(args, sampled(args, document["model"]["config"]["vocab_size"]))
    command = f"python -m tests.gpu.engine_tp2_h200 --contract contracts/{args.contract}.yaml"
    data = {"machine": harness.machine(), "versions": harness.versions(), "command": command, "rows": found}
    (args.out / f"parallel_engine_{args.contract}.json").write_text(json.dumps(data, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(any(row["ours_ms"] for row in found))


if __name__ == "__main__":
    main()
