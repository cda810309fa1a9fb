"""The trainer of the demo, a process of its own. usage: python -m examples.demo_trainer FOLDER CONTRACT stock|bound

`stock` scores the stock engine's samples with Megatron-core's own layers. `bound` shakes hands with the bound engine
and takes GRPO steps: score, compare, differentiate, update, synchronise.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from examples.demo_engine import publish, wait_for


def without_gpu() -> None:
    """Megatron asks CUDA for a device and for a random state even when it is told to initialise on the CPU."""
    from megatron.core.tensor_parallel.random import CudaRNGStatesTracker

    @contextlib.contextmanager
    def fork(self: Any, name: str = "") -> Iterator[None]:
        yield

    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]
    CudaRNGStatesTracker.fork = fork


def stock_model(config: Any, figures: dict[str, Any]) -> torch.nn.Module:
    """Megatron's own layers for the same network."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel

    config.use_te_activation_func = False
    return GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=True),
        vocab_size=figures["vocab_size"],
        max_sequence_length=figures["max_position_embeddings"],
        position_embedding_type="rope",
        rotary_base=figures["rope_theta"],
        share_embeddings_and_output_weights=figures["tie_word_embeddings"],
        parallel_output=True,
    )


def stock_logprobs(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """log p of every next token, [b, s - 1], as frameworks do it: fp32 log-softmax of the model's logits."""
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool), 1)
    logits = model(tokens, torch.arange(length).expand_as(tokens), mask)
    return torch.log_softmax(logits.float(), -1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]


def padded(rollouts: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded sequences [b, s], and for each completion token the column of its log-probability [b, n]."""
    sequences = [p + c for p, c in zip(rollouts["prompts"], rollouts["completions"], strict=True)]
    longest = max(map(len, sequences))
    tokens = torch.tensor([s + [0] * (longest - len(s)) for s in sequences])
    first = torch.tensor([len(p) - 1 for p in rollouts["prompts"]])
    return tokens, first[:, None] + torch.arange(len(rollouts["completions"][0]))


def differences(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    """Counts of differing bit patterns, and how far apart the numbers are."""
    apart = (ours - theirs).abs()
    differ = int((ours.contiguous().view(torch.int32) != theirs.contiguous().view(torch.int32)).sum())
    return {"differ": differ, "of": ours.numel(), "mean": float(apart.mean()), "max": float(apart.max())}


def advantages(rollouts: dict[str, Any], samples: int) -> tuple[torch.Tensor, float]:
    """Rewards (the share of even tokens) standardised in each group of samples [b, 1], and their mean."""
    reward = torch.tensor([sum(t % 2 == 0 for t in c) / len(c) for c in rollouts["completions"]])
    groups = reward.view(-1, samples)
    scaled = (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)
    return scaled.view(-1, 1), float(reward.mean())


def learn(folder: Path, job: dict[str, Any], contract: str, adapter: Any, model: torch.nn.Module) -> None:
    """The loop. The ratio of the policies is exactly one, so its clipping never acts; that is the point."""
    weights = importlib.import_module(f"{contract}.adapters.megatron_weights")
    support = importlib.import_module(f"{contract}.weights")
    transports = importlib.import_module(f"{contract}.transports")
    handshake = importlib.import_module(f"{contract}.handshake")
    guard = importlib.import_module(f"{contract}.guard")
    mine = handshake.statement(rank=0, world=1, sizes={"tp": 1, "sp": "off"})
    transports.shake(transports.Folder(path=folder, side="trainer", seconds=300), handshake.hello([mine]), mine)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(job["steps"] + 1):
        rollouts = torch.load(wait_for(folder / f"{step}.rollouts"))
        tokens, columns = padded(rollouts)
        logprobs = adapter.score(model, tokens).gather(1, columns)
        advantage, reward = advantages(rollouts, job["samples"])
        found = differences(logprobs.detach(), rollouts["logprobs"])
        if step == 0:
            guard.first_forward("trainer_fwd")
        publish(folder / f"{step}.found", {**found, "reward": reward})
        if step == job["steps"]:
            return
        ratio = torch.exp(logprobs - rollouts["logprobs"])
        loss = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        guard.step(step + 1)
        save_file(weights.gathered(model), folder / f"{step + 1}.safetensors")
        publish(folder / f"{step + 1}.fingerprints", support.merge([support.fingerprints(weights.pieces(model))]))


def main() -> None:
    folder, contract, kind = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    job = json.loads((folder / "job.json").read_text())
    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / f"{kind}.store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    from megatron.core import parallel_state

    without_gpu()
    parallel_state.initialize_model_parallel()
    sys.path.insert(0, job["generated"])
    adapter = importlib.import_module(f"{contract}.adapters.megatron_model")
    weights = importlib.import_module(f"{contract}.adapters.megatron_weights")
    package = importlib.import_module(f"{contract}.package").load()
    config = adapter.transformer_config(use_cpu_initialization=True, perform_initialization=False)
    model = stock_model(config, package.model).to(package.dtype) if kind == "stock" else adapter.ContractModel(config)
    importlib.import_module(f"{contract}.weights").load(
        weights.pieces(model), load_file(folder / "model" / "model.safetensors")
    )
    if kind == "stock":
        rollouts = torch.load(wait_for(folder / "stock.rollouts"))
        tokens, columns = padded(rollouts)
        with torch.no_grad():
            found = differences(stock_logprobs(model, tokens).gather(1, columns), rollouts["logprobs"])
        publish(folder / "stock.found", found)
    else:
        learn(folder, job, contract, adapter, model)
    os._exit(0)


if __name__ == "__main__":
    main()
