"""Layouts of real frameworks on real devices: vLLM under tensor parallelism, Megatron-core on every layout, NCCL.

usage: python -m tests.gpu.layouts_h200 --out DIR [--generated generated] [--contract tiny_moe] [--ranks 2]
       [--phases model,engine,trainer]

The engine samples on all GPUs. The trainer scores the samples (drawn sequences, without the engine) on one GPU and then
on every layout of the ranks, in batches that differ from rank to rank. It counts log-probabilities that differ from one
GPU's and from the engine's. Results go to DIR/layouts.json; exit code 1 when one differs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench import harness
from bench.gpus import on_gpus
from examples import tiny
from tests.support.bits import differing

QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
TOKENS = 24
ENGINE = {
    "skip_tokenizer_init": True,
    "max_model_len": 512,
    "max_num_batched_tokens": 256,
    "max_num_seqs": 32,
    "enable_prefix_caching": True,
    "gpu_memory_utilization": 0.2,
    "compilation_config": {"cudagraph_capture_sizes": [1, 4, 32]},
}
Layout = tuple[int, bool, int]


def prompts(job: dict[str, Any]) -> list[list[int]]:
    """1 to 400 tokens, a third with a long common beginning."""
    document = json.loads((Path(job["generated"]) / job["contract"] / "contract.json").read_text())
    return tiny.prompts(48, document["model"]["config"]["vocab_size"], 400)


def model(job: dict[str, Any]) -> None:
    tiny.write_model(
        Path(job["out"]) / "model",
        json.loads((Path(job["generated"]) / job["contract"] / "contract.json").read_text()),
    )


def engine(job: dict[str, Any]) -> None:
    """Sample on all GPUs; sequences and log-probabilities to DIR/engine.pt."""
    from vllm import LLM, SamplingParams

    settings = importlib.import_module(f"{job['contract']}.adapters.vllm_settings")
    arguments = {**ENGINE, "model": str(Path(job["out"]) / "model"), "tensor_parallel_size": job["ranks"]}
    llm = LLM(**settings.engine_arguments(**arguments))
    params = SamplingParams(temperature=1.0, max_tokens=TOKENS, logprobs=0, ignore_eos=True, detokenize=False)
    requests = prompts(job)
    outputs = llm.generate([{"prompt_token_ids": r} for r in requests], params, use_tqdm=False)
    ids = [list(o.outputs[0].token_ids) for o in outputs]
    logprobs = [
        [d[t].logprob for d, t in zip(output.outputs[0].logprobs, tokens, strict=True)]
        for output, tokens in zip(outputs, ids, strict=True)
    ]
    found = {
        "sequences": [r + i for r, i in zip(requests, ids, strict=True)],
        "sampled": torch.tensor(logprobs, dtype=torch.float64).float(),
    }
    torch.save(found, Path(job["out"]) / "engine.pt")


def layouts(ranks: int) -> Iterator[Layout]:
    """(tensor parallelism, sequence scattered, owners of experts); one GPU's first."""
    sizes = [size for size in (1, 2, 4, 8) if ranks % size == 0]
    for tp in sizes:
        for sp in (False, True) if tp > 1 else (False,):
            yield from ((tp, sp, ep) for ep in sizes)


def built(job: dict[str, Any], layout: Layout) -> tuple[Any, torch.nn.Module]:
    """Megatron-core's model on one layout, with the checkpoint's weights."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from safetensors.torch import load_file

    tp, sp, ep = layout
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=tp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=tp if ep == 1 else 1,
    )
    model_parallel_cuda_manual_seed(1)
    adapter = importlib.import_module(f"{job['contract']}.adapters.megatron_model")
    pieces = importlib.import_module(f"{job['contract']}.adapters.megatron_weights").pieces
    config = adapter.transformer_config(
        tensor_parallel=tp, sequence_parallel=sp, expert_parallel=ep, perform_initialization=False
    )
    network = adapter.ContractModel(config).cuda().eval()
    tensors = load_file(Path(job["out"]) / "model" / "model.safetensors", device="cuda")
    importlib.import_module(f"{job['contract']}.weights").load(pieces(network), tensors)
    return adapter, network


@torch.no_grad()
def scored(adapter: Any, network: torch.nn.Module, sequences: list[list[int]], layout: Layout, rank: int) -> Any:
    """Log-probabilities of every sequence's tokens, cut at another place for every group of tensor parallelism."""
    tp, sp, _ = layout
    turn = 1 + rank // tp
    found = []
    for part in (sequences[:turn], sequences[turn:]):
        starts = [0]
        for sequence in part:
            starts.append(starts[-1] + len(sequence))
        surplus = -starts[-1] % tp if sp else 0
        flat = torch.tensor([t for s in part for t in s] + [0] * surplus, device="cuda")
        ends = starts + ([starts[-1] + surplus] if surplus else [])
        rows = adapter.score(network, flat[None], starts=torch.tensor(ends, dtype=torch.int32, device="cuda"))[0]
        found += [rows[a : b - 1].cpu() for a, b in pairwise(starts)]
    return found


def on_rank(group: dist.ProcessGroup, job: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(job["generated"]).resolve()))
    rank, out = dist.get_rank(group), Path(job["out"])
    sampled = None
    sequences = prompts(job)
    if (out / "engine.pt").exists():
        loaded = torch.load(out / "engine.pt")
        sequences, sampled = loaded["sequences"], loaded["sampled"]
    alone: list[torch.Tensor] = []
    found = []
    for layout in layouts(job["ranks"]):
        rows = scored(*built(job, layout), sequences, layout, rank)
        alone = alone or rows
        counts = [("one GPU's", sum(differing(a, b) for a, b in zip(rows, alone, strict=True)), sum(map(len, rows)))]
        if sampled is not None:
            differ = sum(differing(a[-TOKENS:], b) for a, b in zip(rows, sampled, strict=True))
            counts.append(("the engine's", differ, sampled.numel()))
        for peer, differ, of in counts:
            total = torch.tensor([differ, of], device="cuda")
            dist.all_reduce(total)
            name = f"{job['contract']}, TP{layout[0]} EP{layout[2]} SP {'on' if layout[1] else 'off'}"
            name = f"log-probabilities that differ from {peer}: {name} (counts, not times)"
            found.append(harness.row(name, total[0].item(), "of", total[1].item(), None, "0"))
            if rank == 0:
                print(f"{name}: {total.tolist()}", flush=True)
        if rank == 0:
            command = f"python -m tests.gpu.layouts_h200 --ranks {job['ranks']}"
            data = {"machine": harness.machine(), "versions": harness.versions(), "command": command, "rows": found}
            (out / "layouts.json").write_text(json.dumps(data, indent=1) + "\n")


def trainer(job: dict[str, Any]) -> None:
    on_gpus(job["ranks"], on_rank, job)


RUN = {"model": model, "engine": engine, "trainer": trainer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--generated", default="generated")
    parser.add_argument("--contract", default="tiny_moe")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--phases", default=",".join(RUN))
    parser.add_argument("--phase", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    job = {name: getattr(arguments, name) for name in ("out", "generated", "contract", "ranks")}
    if arguments.phase:
        generated = str(Path(job["generated"]).resolve())
        sys.path.insert(0, generated)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (generated, os.environ.get("PYTHONPATH", ""))))
        RUN[arguments.phase](job)
        sys.stdout.flush()
        os._exit(0)
    Path(job["out"]).mkdir(parents=True, exist_ok=True)
    for phase in arguments.phases.split(","):
        began = time.monotonic()
        command = [sys.executable, "-W", "ignore", "-m", "tests.gpu.layouts_h200", *sys.argv[1:], "--phase", phase]
        code = subprocess.run(command, env={**os.environ, **QUIET}, check=False).returncode
        print(f"{phase}: exit {code}, {time.monotonic() - began:.1f} s", flush=True)
    rows = json.loads((Path(job["out"]) / "layouts.json").read_text())["rows"]
    sys.exit(any(row["ours_ms"] for row in rows))


if __name__ == "__main__":
    main()
