"""The MoE layer against vLLM's fused experts and cuBLAS: `python -m bench.moe [--quick]`.

Weights of all experts exceed L2, so that no run is warm by accident; ours and the peer's run in turn in CUDA graphs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from bench import harness
from isoexec_compiler.registry import Values
from tests.support.rendering import render_kernel

COPIED_BYTES_PER_MS = 4.3e9
OPERATIONS_PER_MS = 7.9e11
Launches = dict[str, Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one MoE layer; `width` may be the share of one of several tensor-parallel ranks."""

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int
    leaves: int = 8

    def kernel(self, implementation: str, launch: Values | None = None, **constants: Any) -> ModuleType:
        own = {
            "router_topk": {"softmax": "selected", "renormalise": True, "scaling": 1.0},
            "expert_act_swiglu": {"weighted": True},
            "expert_combine_slots": {"weighted": False},
        }
        sizes = {"experts": self.experts, "top_k": self.top_k, "hidden": self.hidden, "width": self.width}
        known = {
            "router_topk": ("experts", "top_k", "hidden"),
            "expert_act_swiglu": ("top_k", "width"),
            "expert_combine_slots": ("top_k", "hidden"),
        }
        attributes = {name: sizes[name] for name in known.get(implementation, tuple(sizes))} | own.get(
            implementation, {}
        )
        given = {"leaves": self.leaves} if implementation == "expert_down_tree" else constants or None
        return render_kernel(implementation, "sm90", attributes, given, launch and ((None, launch),))


QWEN3_5 = Shape(name="35B-A3B", experts=256, top_k=8, hidden=2048, width=512)
QWEN3_5_TP8 = Shape(name="35B-A3B TP8", experts=256, top_k=8, hidden=2048, width=64, leaves=1)
QWEN3 = Shape(name="30B-A3B", experts=128, top_k=8, hidden=2048, width=768)


class Layer:
    """Inputs of a layer and every stage of it, ours."""

    def __init__(self, shape: Shape, tokens: int, launches: Launches | None = None) -> None:
        launches = launches or {}
        self.shape, self.tokens = shape, tokens
        torch.manual_seed(tokens)
        bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
        self.x = torch.randn(tokens, shape.hidden, **bf16)
        self.router_weight = torch.randn(shape.experts, shape.hidden, **bf16) * shape.hidden**-0.5
        self.gate_up_weight, self.down_weight = weights(shape)
        self.router = shape.kernel("router_topk", launches.get("router"), product="exact", slots="expert")
        self.gate_up = shape.kernel("expert_gate_up_sequential", launches.get("gate_up"))
        self.act = shape.kernel("expert_act_swiglu", launches.get("act"))
        self.down = shape.kernel("expert_down_tree", launches.get("down"))
        self.combine = shape.kernel("expert_combine_slots", launches.get("combine"))
        self.chosen, self.weights = self.router.router(self.x, self.router_weight)
        self.order, self.offsets = self.router.dispatch(self.chosen)
        self.projected = self.run_gate_up()
        self.activated = self.run_act()
        self.rows = self.run_down()

    def run_gate_up(self) -> torch.Tensor:
        return self.gate_up.expert_gate_up(self.x, self.gate_up_weight, self.order, self.offsets)

    def run_act(self) -> torch.Tensor:
        return self.act.expert_act(self.projected, self.weights, self.order)

    def run_down(self) -> torch.Tensor:
        return self.down.expert_down(self.activated, self.down_weight, self.order, self.offsets)

    def run_combine(self) -> torch.Tensor:
        rows = self.rows.view(self.tokens, self.shape.top_k, self.shape.hidden)
        return self.combine.expert_combine(rows, self.weights)

    def experts(self) -> torch.Tensor:
        """From routed tokens to combined rows: what vLLM's fused experts compute."""
        order, offsets = self.router.dispatch(self.chosen)
        projected = self.gate_up.expert_gate_up(self.x, self.gate_up_weight, order, offsets)
        rows = self.down.expert_down(
            self.act.expert_act(projected, self.weights, order), self.down_weight, order, offsets
        )
        return self.combine.expert_combine(rows.view(self.tokens, self.shape.top_k, -1), self.weights)


# The schedules for many rows, whatever the recommendation is.
PIPELINE = {"block_m": 64, "block_n": 128, "num_warps": 8, "num_stages": 4}
SPECIALISED: Launches = {
    "gate_up": {"schedule": "specialised", "block_k": 64, **PIPELINE},
    "down": {"schedule": "resident", **PIPELINE},
}

_WEIGHTS: dict[Shape, tuple[torch.Tensor, torch.Tensor]] = {}


def weights(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate-up and down weights of a shape, drawn once."""
    if shape not in _WEIGHTS:
        _WEIGHTS.clear()
        bf16 = {"dtype": torch.bfloat16, "device": "cuda"}
        _WEIGHTS[shape] = (
            torch.randn(shape.experts, 2 * shape.width, shape.hidden, **bf16).mul_(shape.hidden**-0.5),
            torch.randn(shape.experts, shape.hidden, shape.width, **bf16).mul_(shape.width**-0.5),
        )
    return _WEIGHTS[shape]


def vllm_experts(layer: Layer) -> Callable[[], torch.Tensor] | None:
    """vLLM's fused experts on the same routing, or None where vLLM is not installed."""
    try:
        from vllm.config import VllmConfig, set_current_vllm_config
        from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts
    except ImportError as missing:
        print(f"no vLLM: {missing}")
        return None

    def run() -> torch.Tensor:
        with set_current_vllm_config(config):
            return fused_experts(layer.x, layer.gate_up_weight, layer.down_weight, layer.weights, layer.chosen)

    config = VllmConfig()
    return run


def grouped(x: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    """torch's grouped GEMM (CUTLASS): sorted rows by expert weights, bf16 out."""
    return torch._grouped_mm(x, weight.transpose(1, 2), offs=offsets[1:])


def stages(layer: Layer) -> Iterator[tuple[str, Callable[[], object], str, Callable[[], object], float, str]]:
    """(name, ours, peer's name, peer, floor ms, goal) of every stage."""
    s, tokens = layer.shape, layer.tokens
    rows = tokens * s.top_k
    used = int((layer.offsets.diff() > 0).sum())
    sorted_x = layer.x[layer.order // s.top_k]

    def floor(moved: float, operations: float = 0.0) -> float:
        return max(moved / COPIED_BYTES_PER_MS, operations / OPERATIONS_PER_MS)

    fc1 = 2 * (used * 2 * s.width * s.hidden + tokens * s.hidden + rows * 2 * s.width)
    fc2 = 2 * (used * s.width * s.hidden + rows * s.width) + 4 * rows * s.hidden
    yield (
        "router",
        lambda: layer.router.router(layer.x, layer.router_weight),
        "cuBLAS bf16 + topk + softmax",
        lambda: torch.topk(layer.x @ layer.router_weight.T, s.top_k)[0].float().softmax(-1),
        floor(2 * (tokens + s.experts) * s.hidden, 2 * tokens * s.hidden * s.experts),
        "",
    )
    yield (
        "dispatch",
        lambda: layer.router.dispatch(layer.chosen),
        "torch.sort, stable",
        lambda: torch.sort(layer.chosen.flatten(), stable=True),
        floor(8 * rows),
        "",
    )
    yield (
        "fc1",
        layer.run_gate_up,
        "torch grouped GEMM, rows sorted before",
        lambda: grouped(sorted_x, layer.gate_up_weight, layer.offsets),
        floor(fc1, 4 * rows * s.width * s.hidden),
        "",
    )
    yield (
        "fc2 tree",
        layer.run_down,
        "torch grouped GEMM, bf16 out, no tree",
        lambda: grouped(layer.activated, layer.down_weight, layer.offsets),
        floor(fc2, 2 * rows * s.width * s.hidden),
        "<= 1.15",
    )
    bf16_rows = layer.rows.view(tokens, s.top_k, s.hidden).bfloat16()
    yield (
        "combine",
        layer.run_combine,
        "torch sum, bf16 rows",
        lambda: bf16_rows.sum(1),
        floor(4 * rows * s.hidden + 2 * tokens * s.hidden),
        "",
    )
    peer = vllm_experts(layer)
    if peer is not None:
        extra = 2 * (rows * 2 * s.width + 2 * rows * s.width) + 4 * rows * s.hidden + 2 * tokens * s.hidden
        yield "layer", layer.experts, "vLLM fused experts", peer, floor(fc1 + fc2 + extra), "<= 1.10"


def measure(
    shape: Shape, tokens: int, launches: Launches | None = None, only: tuple[str, ...] = ()
) -> Iterator[harness.Row]:
    """One row a stage; a peer that does not run is named and left out."""
    layer = Layer(shape, tokens, launches)
    kind = " specialised" if launches else ""
    repeats = 10 if tokens <= 256 else 1  # a replay costs as much as a small kernel
    for name, ours, peer_name, peer, floor, goal in stages(layer):
        if only and name not in only:
            continue
        try:
            mine, theirs = harness.paired(harness.graph(ours, repeats), harness.graph(peer, repeats))
        except (RuntimeError, AssertionError, ValueError) as refused:
            print(f"{name} {shape.name} T={tokens}: {peer_name} refused: {str(refused)[:200]}")
            torch.cuda.synchronize()
            continue
        yield harness.row(
            f"{name}{kind} {shape.name} T={tokens}", mine / repeats, peer_name, theirs / repeats, floor, goal
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two token counts of one model")
    arguments = parser.parse_args()
    counts = (64, 8192) if arguments.quick else (1, 16, 64, 256, 1024, 8192, 20480)
    rows = [row for tokens in counts for row in measure(QWEN3_5, tokens)]
    if not arguments.quick:
        rows += [row for tokens in (64, 1024) for row in measure(QWEN3_5_TP8, tokens)]
        rows += [row for tokens in (64, 8192) for row in measure(QWEN3, tokens)]
    harness.save("moe_h200", rows)
    stages_with_schedules = ("fc1", "fc2 tree", "layer")
    wide = ((QWEN3_5, 8192),) if arguments.quick else ((QWEN3_5, 8192), (QWEN3_5, 20480), (QWEN3, 8192))
    rows += [row for case in wide for row in measure(*case, SPECIALISED, stages_with_schedules)]
    harness.save("moe_h200", rows)


if __name__ == "__main__":
    main()
