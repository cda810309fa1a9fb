"""Qwen3, dense: attention with head norms and full rotary, gated MLP, every layer alike."""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks
from isoexec_compiler.registry import Family, Site, Values


def _sites(figures: Values, layers: tuple[str, ...]) -> tuple[Site, ...]:
    every = tuple(range(len(layers)))
    return (
        blocks.embedding(figures),
        blocks.norm("attn_norm", figures, "plain", every),
        *blocks.attention(figures, every, gamma="plain", rotary_dim=blocks.number(figures, "head_dim"), gated=False),
        blocks.norm("mlp_norm", figures, "plain", every),
        *blocks.dense_mlp(figures, every),
        *blocks.head(figures, "plain"),
    )


def _from_hf(config: huggingface.Config) -> tuple[Values, tuple[str, ...]]:
    huggingface.refuse(config, allowed_layers=("full_attention",))
    figures = {
        **huggingface.ends(config),
        **huggingface.attention(config),
        "intermediate_size": huggingface.integer(config, "intermediate_size"),
    }
    return figures, ("attention",) * huggingface.layer_count(config)


FAMILY = Family(
    name="qwen3",
    doc="Qwen3 dense models: 0.6B to 32B.",
    config=blocks.ENDS | blocks.ATTENTION | blocks.DENSE_MLP,
    layer_kinds=("attention",),
    sites=_sites,
    model_types=("qwen3",),
    from_hf=_from_hf,
)
