"""Megatron-core in this process, stock or bound, with the weights that `e2e_h200` wrote."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

import torch

from examples.demo_trainer import stock_model, without_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on a CPU only to try the script itself on a tiny contract


def trainer(args: argparse.Namespace, bound: bool) -> tuple[Any, torch.nn.Module]:
    """Megatron-core in this process, stock or bound, with the checkpoint's weights."""
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from safetensors.torch import load_file

    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    if DEVICE == "cuda":
        model_parallel_cuda_manual_seed(1)
    else:
        without_gpu()
    adapter = importlib.import_module(f"{args.contract}.adapters.megatron_model")
    weights = importlib.import_module(f"{args.contract}.adapters.megatron_weights")
    package = importlib.import_module(f"{args.contract}.package").load()
    config = adapter.transformer_config(perform_initialization=False, use_cpu_initialization=DEVICE == "cpu")
    network = adapter.ContractModel(config) if bound else stock_model(config, package.model).to(package.dtype)
    network = network.to(DEVICE).eval()
    tensors = load_file(Path(args.out) / "model" / "model.safetensors", device=DEVICE)
    importlib.import_module(f"{args.contract}.weights").load(weights.pieces(network), tensors)
    return adapter, network


def stock_rows(network: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(1, 1, length, length, dtype=torch.bool, device=DEVICE), 1)
    logits = network(tokens, torch.arange(length, device=DEVICE).expand_as(tokens), mask)
    return torch.log_softmax(logits.float(), -1)[:, :-1].gather(2, tokens[:, 1:, None])[..., 0]


def rows_of(adapter: Any, network: torch.nn.Module, bound: bool, tokens: torch.Tensor) -> torch.Tensor:
    scored: torch.Tensor = adapter.score(network, tokens) if bound else stock_rows(network, tokens)
    return scored
