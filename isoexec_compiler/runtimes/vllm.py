"""vLLM, the rollout engine."""

from __future__ import annotations

from isoexec_compiler.registry import Runtime

RUNTIME = Runtime(
    name="vllm",
    side="engine",
    doc="Bound by out-of-tree layer classes and an attention backend.",
    package="vllm",
    versions=("0.26.0",),
    adapters=("vllm", "vllm_attention", "vllm_settings", "vllm_worker"),
    cases=("engine_prefill", "engine_decode"),
    topologies=("tp",),
)
