"""A whole MoE layer of rendered kernels, for laws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import torch

from isoexec_compiler.registry import Values
from tests.support.inputs import DTYPES, normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One layer; on a GPU the sizes of Qwen3.5-35B-A3B, elsewhere a small relative."""

    experts: int
    top_k: int
    hidden: int
    width: int
    leaves: int = 8


SMALL = Sizes(experts=8, top_k=2, hidden=64, width=128)
LARGE = Sizes(experts=256, top_k=8, hidden=2048, width=512)
TOKENS = {"cpu": (1, 2, 7, 8, 16, 64, 96), "interpreter": (1, 7), "sm90": (1, 2, 7, 8, 16, 64, 96, 512, 4096, 20480)}

# The schedules with tiles: the interpreter knows no warp specialisation.
_TILE: Values = {"schedule": "tiles", "block_m": 16, "block_n": 64, "num_warps": 4, "num_stages": 3}
INTERPRETED = {"expert_gate_up_sequential": {**_TILE, "block_k": 64}, "expert_down_tree": _TILE}


def sizes(place: str) -> Sizes:
    return LARGE if place == "sm90" else SMALL


@lru_cache(maxsize=2)
def drawn(s: Sizes, device: str, dtype: str, seed: int) -> tuple[torch.Tensor, ...]:
    """Router, gate-up and down weights; drawn on the device, for those of the large layer take the CPU seconds."""
    generator = torch.Generator(device).manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=generator, device=device) * shape[-1] ** -0.5).to(DTYPES[dtype])

    return (
        weight(s.experts, s.hidden),
        weight(s.experts, 2 * s.width, s.hidden),
        weight(s.experts, s.hidden, s.width),
    )


class Moe:
    """The modules of a layer at one place, and its weights."""

    def __init__(self, place: str, size: Sizes | None = None, *, dtype: str = "bf16", weighted: str = "act",
                 slots: str = "expert", softmax: str = "selected", seed: int = 0) -> None:  # fmt: skip
        s = self.sizes = size or sizes(place)
        self.device, self.dtype = DEVICE[place], dtype

        def kernel(name: str, attributes: Values, constants: Values | None = None) -> ModuleType:
            launch = INTERPRETED.get(name) if place == "interpreter" else None
            return render_kernel(name, TARGET[place], attributes, constants, launch and ((None, launch),), dtype=dtype)

        projection = {"experts": s.experts, "top_k": s.top_k, "hidden": s.hidden, "width": s.width}
        route = {"softmax": softmax, "renormalise": True, "scaling": 1.0}
        self.router = kernel(
            "router_topk",
            {"hidden": s.hidden, "experts": s.experts, "top_k": s.top_k, **route},
            {"product": "exact", "slots": slots},
        )
        self.gate_up = kernel("expert_gate_up_sequential", projection)
        self.act = kernel("expert_act_swiglu", {"top_k": s.top_k, "width": s.width, "weighted": weighted == "act"})
        self.down = kernel("expert_down_tree", projection, {"leaves": s.leaves})
        self.combine = kernel(
            "expert_combine_slots", {"hidden": s.hidden, "top_k": s.top_k, "weighted": weighted == "combine"}
        )
        self.router_weight, self.gate_up_weight, self.down_weight = drawn(s, self.device, dtype, seed)

    def tokens(self, count: int, seed: int) -> torch.Tensor:
        return normal(count, self.sizes.hidden, seed=seed, dtype=self.dtype, device=self.device)

    def rows(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor, gate_up: torch.Tensor | None = None,
             down: torch.Tensor | None = None) -> torch.Tensor:  # fmt: skip
        """fp32 [T, k, hidden] of the given experts, or nodes of it if the weights are shares of the width."""
        gate_up = self.gate_up_weight if gate_up is None else gate_up
        down = self.down_weight if down is None else down
        order, offsets = self.router.dispatch(chosen, gate_up.shape[0])
        projected = self.gate_up.expert_gate_up(x, gate_up, order, offsets)
        activated = self.act.expert_act(projected, weights, order)
        return self.down.expert_down(activated, down, order, offsets).view(*chosen.shape, self.sizes.hidden)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The routed experts of tokens [T, hidden]."""
        chosen, weights = self.router.router(x, self.router_weight)
        return self.combine.expert_combine(self.rows(x, chosen, weights), weights)

    def float64(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """The layer in float64 with the given routing, differentiable."""
        gate_up, down = self.gate_up_weight.double(), self.down_weight.double()
        out = torch.zeros_like(x, dtype=torch.float64)
        for expert in range(self.sizes.experts):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            gate, up = (x[token].double() @ gate_up[expert].T).chunk(2, 1)
            rows = (gate * gate.sigmoid() * up) @ down[expert].T
            out = out.index_add(0, token, rows * weights[token, slot].double()[:, None])
        return out


def share(moe: Moe, rank: int, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The gate-up and down weights of one of `ranks` that cut the width: gate rows, then up rows."""
    part = moe.sizes.width // ranks
    mine = slice(rank * part, (rank + 1) * part)
    gate, up = moe.gate_up_weight.chunk(2, 1)
    gate_up = torch.cat((gate[:, mine], up[:, mine]), 1).contiguous()
    return gate_up, moe.down_weight[:, :, mine].contiguous()
