"""Qwen3.5, mixture of experts: the hybrid stack, routed experts and a shared one in every layer."""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks, experts, hybrid
from isoexec_compiler.registry import Family, Site, Values


def _sites(figures: Values, layers: tuple[str, ...]) -> tuple[Site, ...]:
    every = tuple(range(len(layers)))
    return (
        blocks.embedding(figures),
        *hybrid.mixers(figures, layers),
        blocks.norm("mlp_norm", figures, "one_plus", every),
        *experts.routed(figures, every),
        *experts.shared(figures, every),
        blocks.residual("mlp_residual", figures, every),
        *blocks.head(figures, "one_plus"),
    )


def _from_hf(config: huggingface.Config) -> tuple[Values, tuple[str, ...]]:
    figures = {**hybrid.from_hf(config), **experts.from_hf(config, norm_topk_prob=True)}
    figures["shared_expert_intermediate_size"] = huggingface.integer(config, "shared_expert_intermediate_size")
    return figures, hybrid.layers_from_hf(config)


FAMILY = Family(
    name="qwen3_5_moe",
    doc="Qwen3.5 models with experts, such as 35B-A3B, and Qwen3-Next; text part.",
    config=hybrid.FIGURES | experts.EXPERTS | experts.SHARED,
    layer_kinds=("gdn", "attention"),
    sites=_sites,
    model_types=("qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"),
    from_hf=_from_hf,
)
