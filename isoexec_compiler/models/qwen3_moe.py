"""Qwen3, mixture of experts: the attention of the dense models, experts in every layer."""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks, experts
from isoexec_compiler.registry import Family, Site, Values


def _sites(figures: Values, layers: tuple[str, ...]) -> tuple[Site, ...]:
    every = tuple(range(len(layers)))
    return (
        blocks.embedding(figures),
        blocks.norm("attn_norm", figures, "plain", every),
        *blocks.attention(figures, every, gamma="plain", rotary_dim=blocks.number(figures, "head_dim"), gated=False),
        blocks.norm("mlp_norm", figures, "plain", every),
        *experts.routed(figures, every),
        blocks.residual("mlp_residual", figures, every),
        *blocks.head(figures, "plain"),
    )


def _from_hf(config: huggingface.Config) -> tuple[Values, tuple[str, ...]]:
    huggingface.refuse(config, allowed_layers=("full_attention",))
    figures = {
        **huggingface.ends(config),
        **huggingface.attention(config),
        **experts.from_hf(config, norm_topk_prob=False),
    }
    return figures, ("attention",) * huggingface.layer_count(config)


FAMILY = Family(
    name="qwen3_moe",
    doc="Qwen3 models with experts: 30B-A3B, 235B-A22B.",
    config=blocks.ENDS | blocks.ATTENTION | experts.EXPERTS,
    layer_kinds=("attention",),
    sites=_sites,
    model_types=("qwen3_moe",),
    from_hf=_from_hf,
)
