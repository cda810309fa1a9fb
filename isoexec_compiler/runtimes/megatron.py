"""Megatron-core, the trainer: recomputes log-probabilities and differentiates them."""

from isoexec_compiler.registry import Runtime

RUNTIME = Runtime(
    name="megatron",
    side="trainer",
    doc="Layers by a module spec, rotary inside the core attention, head and log-softmax by an output processor.",
    package="megatron-core",
    versions=("0.19.2",),
    adapters=(
        *("megatron", "megatron_attention", "megatron_config", "megatron_model", "megatron_modules"),
        "megatron_weights",
    ),
    adapters_by_op={
        "gated_delta_rule": ("megatron_gdn",),
        "router": ("megatron_moe",),
        "shared_gate": ("megatron_shared",),
        "sigmoid_gate": ("megatron_gated_attention",),
    },
    cases=("trainer_fwd", "trainer_score"),
    topologies=("tp", "sp", "ep"),
)
