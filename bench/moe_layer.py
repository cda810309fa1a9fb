"""One mixture-of-experts layer of rendered kernels, for benchmarks: shapes, inputs, every stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch

from isoexec_compiler.registry import Values
from tests.support.rendering import render_kernel

Launches = dict[str, Values]
BF16 = {"dtype": torch.bfloat16, "device": "cuda"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Sizes of one MoE layer, of whose width one of `ranks` holds a share."""

    name: str
    experts: int
    top_k: int
    hidden: int
    width: int
    ranks: int = 1
    shared: bool = False

    @property
    def share(self) -> int:
        """The width that one rank holds."""
        return self.width // self.ranks

    def kernel(self, implementation: str, launch: Values | None = None, **constants: Any) -> ModuleType:
        """A kernel of the experts' regions with the sizes of this layer."""
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
        attributes = {name: sizes[name] for name in known.get(implementation, tuple(sizes))}
        launches = launch and ((None, launch),)
        attributes |= own.get(implementation, {})
        return render_kernel(implementation, "sm90", attributes, constants or None, launches)


QWEN3_5 = Shape(name="35B-A3B", experts=256, top_k=8, hidden=2048, width=512, shared=True)
QWEN3_5_TP8 = Shape(name="35B-A3B TP8", experts=256, top_k=8, hidden=2048, width=512, ranks=8)
QWEN3 = Shape(name="30B-A3B", experts=128, top_k=8, hidden=2048, width=768)
FEW = Shape(name="8 experts", experts=8, top_k=2, hidden=2048, width=768)
MANY = Shape(name="512 experts", experts=512, top_k=10, hidden=2048, width=512)


@lru_cache(maxsize=1)
def weights(shape: Shape) -> tuple[torch.Tensor, torch.Tensor]:
    """Gate-up and down weights of a shape's experts."""
    return (
        torch.randn(shape.experts, 2 * shape.share, shape.hidden, **BF16).mul_(shape.hidden**-0.5),
        torch.randn(shape.experts, shape.hidden, shape.share, **BF16).mul_(shape.width**-0.5),
    )


class Layer:
    """Inputs of a layer and every stage of it, ours."""

    def __init__(self, shape: Shape, tokens: int, launches: Launches | None = None) -> None:
        launches = launches or {}
        self.shape, self.tokens = shape, tokens
        torch.manual_seed(tokens)
        self.x = torch.randn(tokens, shape.hidden, **BF16)
        self.router_weight = torch.randn(shape.experts, shape.hidden, **BF16) * shape.hidden**-0.5
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

    def run_router(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.router.router(self.x, self.router_weight)

    def run_dispatch(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.router.dispatch(self.chosen)

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
        order, offsets = self.run_dispatch()
        projected = self.gate_up.expert_gate_up(self.x, self.gate_up_weight, order, offsets)
        rows = self.down.expert_down(
            self.act.expert_act(projected, self.weights, order), self.down_weight, order, offsets
        )
        return self.combine.expert_combine(rows.view(self.tokens, self.shape.top_k, -1), self.weights)


class SharedExpert:
    """The shared expert of a layer and its gate, ours; as wide as one routed expert."""

    def __init__(self, layer: Layer) -> None:
        hidden, width = layer.shape.hidden, layer.shape.width
        self.x = layer.x
        self.gate_up_weight = torch.randn(2 * width, hidden, **BF16) * hidden**-0.5
        self.down_weight = torch.randn(hidden, width, **BF16) * width**-0.5
        self.gate_weight = torch.randn(1, hidden, **BF16) * hidden**-0.5

        def kernel(implementation: str, **attributes: Any) -> ModuleType:
            return render_kernel(implementation, "sm90", attributes)

        self.gate_up = kernel("matmul_sequential", n=2 * width, k=hidden, split="columns", out="model")
        self.act = kernel("silu_gate_rows", width=width)
        self.down = kernel("matmul_tree", n=hidden, k=width, split="rows", out="model")
        self.gate = kernel("shared_gate_tree", hidden=hidden)
        self.combine = kernel("shared_combine_once", hidden=hidden)

    def add(self, routed: torch.Tensor) -> torch.Tensor:
        """The routed experts' rows plus the gated shared expert."""
        hidden = self.act.silu_gate(self.gate_up.matmul(self.x, self.gate_up_weight))
        shared = self.down.matmul(hidden, self.down_weight)
        return self.combine.shared_combine(routed, shared, self.gate.shared_gate(self.x, self.gate_weight))
