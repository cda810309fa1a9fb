"""Device time of each kernel of a MoE layer, ours and vLLM's: `python -m bench.moe_profile [tokens ...]`."""

from __future__ import annotations

import sys

import torch

from bench.moe import vllm_experts
from bench.moe_layer import QWEN3_5, Layer, Shape


def profile(shape: Shape, tokens: int) -> None:
    """Print the largest kernels of a layer, microseconds a call."""
    layer = Layer(shape, tokens)
    for name, run in (("ours", layer.experts), ("vLLM", vllm_experts(layer))):
        if run is None:
            continue
        run()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            for _ in range(5):
                run()
            torch.cuda.synchronize()
        for event in sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)[:9]:
            print(f"{shape.name} T={tokens} {name}: {event.self_device_time_total / 5:8.1f} us  {event.key[:80]}")


if __name__ == "__main__":
    for tokens in map(int, sys.argv[1:] or ("1", "64", "8192")):
        profile(QWEN3_5, tokens)
