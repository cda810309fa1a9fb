"""Qwen3.5, dense: the hybrid stack with a gated MLP in every layer."""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks, hybrid
from isoexec_compiler.registry import Family, Site, Values


def _sites(figures: Values, layers: tuple[str, ...]) -> tuple[Site, ...]:
    every = tuple(range(len(layers)))
    return (
        blocks.embedding(figures),
        *hybrid.mixers(figures, layers),
        blocks.norm("mlp_norm", figures, "one_plus", every),
        *blocks.dense_mlp(figures, every),
        *blocks.head(figures, "one_plus"),
    )


def _from_hf(config: huggingface.Config) -> tuple[Values, tuple[str, ...]]:
    figures = hybrid.from_hf(config)
    figures["intermediate_size"] = huggingface.integer(config, "intermediate_size")
    return figures, hybrid.layers_from_hf(config)


FAMILY = Family(
    name="qwen3_5",
    doc="Qwen3.5 dense models, 0.8B to 27B; text part.",
    config=hybrid.FIGURES | blocks.DENSE_MLP,
    layer_kinds=("gdn", "attention"),
    sites=_sites,
    model_types=("qwen3_5", "qwen3_5_text"),
    from_hf=_from_hf,
)
