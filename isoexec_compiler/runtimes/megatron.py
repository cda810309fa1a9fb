"""Megatron-core, the trainer."""

from __future__ import annotations

from isoexec_compiler.registry import Runtime

RUNTIME = Runtime(
    name="megatron",
    side="trainer",
    doc="Bound by a layer spec of our own over the public module specs.",
    package="megatron.core",
    versions=("0.19.2",),
    adapters=("megatron", "megatron_model", "megatron_weights"),
    cases=("trainer_fwd", "trainer_score"),
    topologies=("tp", "sp"),
)
