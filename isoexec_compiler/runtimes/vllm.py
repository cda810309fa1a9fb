"""vLLM, the engine: samples, and reports the log-probability of every sampled token."""

from isoexec_compiler.registry import Runtime

RUNTIME = Runtime(
    name="vllm",
    side="engine",
    doc="Layers by the out-of-tree registries, attention as a backend, selected by `worker_extension_cls`.",
    package="vllm",
    versions=("0.26.0",),
    adapters=("vllm", "vllm_layers", "vllm_attention", "vllm_settings", "vllm_worker", "vllm_driver"),
    adapters_by_op={
        "gated_delta_rule": ("vllm_gated_delta", "vllm_recurrent_state", "vllm_text_of_vision"),
        "router": ("vllm_moe",),
        "shared_gate": ("vllm_shared_expert",),
        "sigmoid_gate": ("vllm_gated_attention",),
    },
    cases=("engine_prefill", "engine_decode"),
    topologies=("tp",),
)
