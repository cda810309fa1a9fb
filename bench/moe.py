"""The MoE layer against vLLM's fused experts and torch's grouped GEMM: `python -m bench.moe [--quick]`.

Weights of all experts exceed L2, so that no run is warm by accident; ours and the peer's run in turn in CUDA graphs.
Kernels of both are compiled first, one process a case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bench import harness
from bench.moe_layer import FEW, MANY, QWEN3, QWEN3_5, QWEN3_5_TP8, Layer, Shape, SharedExpert

COPIED_BYTES_PER_MS = 4.3e9
OPERATIONS_PER_MS = 7.9e11
Run = Callable[[], object]
CASES = (
    *((shape, tokens) for shape in (QWEN3_5, QWEN3, QWEN3_5_TP8) for tokens in (64, 8192, 1, 16, 512, 2048)),
    *((QWEN3_5, 20480), (FEW, 512), (MANY, 512)),
)
QUICK = ((QWEN3_5, 64), (QWEN3_5, 8192))


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of the layer, ours and a peer's, and the bytes and operations that no version can avoid."""

    name: str
    ours: Run
    peer_name: str
    peer: Run
    moved: float
    operations: float = 0.0
    goal: str = ""

    @property
    def floor(self) -> float:
        """Milliseconds."""
        return max(self.moved / COPIED_BYTES_PER_MS, self.operations / OPERATIONS_PER_MS)


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


def stages(layer: Layer) -> Iterator[Stage]:
    """Every stage, the peer's rounded more often than ours or not at all, and the whole layer."""
    s, tokens = layer.shape, layer.tokens
    rows = tokens * s.top_k
    used = int((layer.offsets.diff() > 0).sum())
    sorted_x = layer.x[layer.order // s.top_k]
    fc1 = 2 * (used * 2 * s.share * s.hidden + tokens * s.hidden + rows * 2 * s.share)
    fc2 = 2 * (used * s.share * s.hidden + rows * s.share) + 4 * rows * s.hidden
    summed = 4 * rows * s.hidden + 2 * tokens * s.hidden
    yield Stage(
        name="router",
        ours=layer.run_router,
        peer_name="cuBLAS bf16 + topk + softmax",
        peer=lambda: torch.topk(layer.x @ layer.router_weight.T, s.top_k)[0].float().softmax(-1),
        moved=2 * (tokens + s.experts) * s.hidden,
        operations=2 * tokens * s.hidden * s.experts,
    )
    yield Stage(
        name="dispatch",
        ours=layer.run_dispatch,
        peer_name="torch.sort, stable",
        peer=lambda: torch.sort(layer.chosen.flatten(), stable=True),
        moved=8 * rows,
    )
    yield Stage(
        name="fc1",
        ours=layer.run_gate_up,
        peer_name="torch grouped GEMM, rows sorted before",
        peer=lambda: grouped(sorted_x, layer.gate_up_weight, layer.offsets),
        moved=fc1,
        operations=4 * rows * s.share * s.hidden,
    )
    yield Stage(
        name="fc2 tree",
        ours=layer.run_down,
        peer_name="torch grouped GEMM, bf16 out, no tree",
        peer=lambda: grouped(layer.activated, layer.down_weight, layer.offsets),
        moved=fc2,
        operations=2 * rows * s.share * s.hidden,
        goal="<= 1.15",
    )
    bf16_rows = layer.rows.view(tokens, s.top_k, s.hidden).bfloat16()
    yield Stage(
        name="combine",
        ours=layer.run_combine,
        peer_name="torch sum, bf16 rows",
        peer=lambda: bf16_rows.sum(1),
        moved=summed,
    )
    peer = vllm_experts(layer)
    if peer is None:
        return
    moved = fc1 + fc2 + 2 * rows * 3 * s.share + summed
    yield Stage(
        name="layer", ours=layer.experts, peer_name="vLLM fused experts", peer=peer, moved=moved, goal="<= 1.10"
    )
    if s.shared:
        shared = SharedExpert(layer)
        yield Stage(
            name="layer, shared expert",
            ours=lambda: shared.add(layer.experts()),
            peer_name="vLLM fused experts, torch",
            peer=lambda: torch_shared(shared, peer()),
            moved=moved + 2 * (3 * s.share * s.hidden + tokens * (5 * s.hidden + 3 * s.share)),
            goal="<= 1.10",
        )


def torch_shared(shared: SharedExpert, routed: torch.Tensor) -> torch.Tensor:
    """The shared expert by cuBLAS and torch's elementwise functions."""
    gate, up = (shared.x @ shared.gate_up_weight.T).chunk(2, -1)
    out = (torch.nn.functional.silu(gate) * up) @ shared.down_weight.T
    return torch.addcmul(routed, out, torch.sigmoid(shared.x @ shared.gate_weight.T))


def measure(shape: Shape, tokens: int) -> Iterator[harness.Row]:
    """One row a stage; a peer that does not run is named and left out."""
    repeats = 10 if tokens <= 256 else 1  # a replay costs as much as a small kernel
    for stage in stages(Layer(shape, tokens)):
        name = f"{stage.name} {shape.name} T={tokens}"
        try:
            mine, theirs = harness.paired(
                harness.graph(stage.ours, repeats), harness.graph(stage.peer, repeats), rounds=15
            )
        except (RuntimeError, AssertionError, ValueError) as refused:
            print(f"{name}: {stage.peer_name} refused: {str(refused)[:200]}")
            torch.cuda.synchronize()
            continue
        row = harness.row(name, mine / repeats, stage.peer_name, theirs / repeats, stage.floor, stage.goal)
        print(name, row["ours_ms"], row["peer_ms"], row["ratio"], flush=True)
        yield row


def warm(shape: Shape, tokens: int) -> None:
    """Run every stage of both once, so that its kernels lie compiled in the caches."""
    torch.set_num_threads(1)
    for stage in stages(Layer(shape, tokens)):
        for run in (stage.ours, stage.peer):
            try:
                run()
            except (RuntimeError, AssertionError, ValueError):
                continue  # `measure` names it
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two token counts of one model")
    cases = QUICK if parser.parse_args().quick else CASES
    with multiprocessing.get_context("spawn").Pool(min(len(cases), os.cpu_count() or 1)) as pool:
        pool.starmap(warm, cases, chunksize=1)
    rows: list[harness.Row] = []
    for shape, tokens in cases:
        rows += measure(shape, tokens)
        harness.write("moe_h200", rows)


if __name__ == "__main__":
    main()
