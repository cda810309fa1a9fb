"""Device time of each kernel of a MoE layer, ours and vLLM's: `python -m bench.moe_profile`."""

from __future__ import annotations

import torch

from bench.moe import QWEN3_5, SPECIALISED, Launches, Layer, Shape, vllm_experts


def profile(shape: Shape, tokens: int, launches: Launches | None = None) -> None:
    """Print the largest kernels of a layer, microseconds a call."""
    layer = Layer(shape, tokens, launches)
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
    profile(QWEN3_5, 1)
    profile(QWEN3_5, 64)
    profile(QWEN3_5, 8192, SPECIALISED)
