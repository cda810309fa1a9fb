"""The hybrid stack: Gated DeltaNet in most layers, gated attention in the others.

`attn_norm` and `attn_residual` stand before and after either kind of mixer.
"""

from isoexec_compiler import huggingface
from isoexec_compiler.models import blocks
from isoexec_compiler.registry import Field, Site, Unsupported, Value, Values

KINDS = {"linear_attention": "gdn", "full_attention": "attention"}

GDN = {
    "linear_num_key_heads": Field(type="int", minimum=1, doc="query and key heads of a GDN layer"),
    "linear_num_value_heads": Field(type="int", minimum=1, doc="value heads of a GDN layer"),
    "linear_key_head_dim": Field(type="int", minimum=1, doc="width of a query or key head"),
    "linear_value_head_dim": Field(type="int", minimum=1, doc="width of a value head"),
    "linear_conv_kernel_dim": Field(type="int", minimum=2, doc="taps of the causal convolution"),
    "partial_rotary_factor": Field(type="float", minimum=0.0, maximum=1.0, doc="part of a head that rotary turns"),
}

FIGURES = blocks.ENDS | blocks.ATTENTION | GDN


def mixers(figures: Values, layers: tuple[str, ...]) -> tuple[Site, ...]:
    """The sites from a layer's norm to its first residual add, for both kinds of layers."""
    every = tuple(range(len(layers)))
    gdn, full = (tuple(i for i in every if layers[i] == kind) for kind in ("gdn", "attention"))
    rotary_dim = round(blocks.number(figures, "head_dim") * float(figures["partial_rotary_factor"]))
    *attention, _ = blocks.attention(figures, full, gamma="one_plus", rotary_dim=rotary_dim, gated=True)
    return (
        blocks.norm("attn_norm", figures, "one_plus", every),
        *_gdn(figures, gdn),
        *attention,
        blocks.residual("attn_residual", figures, every),
    )


def _gdn(figures: Values, layers: tuple[int, ...]) -> tuple[Site, ...]:
    hidden = blocks.number(figures, "hidden_size")
    qk_heads, v_heads = (blocks.number(figures, f"linear_num_{name}_heads") for name in ("key", "value"))
    key_dim, value_dim = (blocks.number(figures, f"linear_{name}_head_dim") for name in ("key", "value"))
    channels, outputs = 2 * qk_heads * key_dim + v_heads * value_dim, v_heads * value_dim
    taps, eps = blocks.number(figures, "linear_conv_kernel_dim"), figures["rms_norm_eps"]

    def per_head(name: str, op: str, attributes: Values) -> Site:
        return Site(name=name, op=op, attributes=attributes, split="heads", extent=qk_heads, layers=layers)

    core: dict[str, Value] = {
        "qk_heads": qk_heads,
        "v_heads": v_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "scale": key_dim**-0.5,
    }
    return (
        blocks.matmul("gdn_in", channels + outputs + 2 * v_heads, hidden, "columns", qk_heads, layers),
        per_head("gdn_conv", "causal_conv", {"channels": channels, "width": taps, "bias": False}),
        per_head("gdn_qk_norm", "l2_norm", {"width": key_dim, "eps": 1e-6}),
        per_head("gdn_gates", "gdn_gates", {"v_heads": v_heads}),
        per_head("gdn_core", "gated_delta_rule", core),
        per_head("gdn_norm", "gated_rms_norm", {"width": value_dim, "eps": eps}),
        blocks.matmul("gdn_out", hidden, outputs, "rows", outputs, layers),
    )


def layers_from_hf(config: huggingface.Config) -> tuple[str, ...]:
    """The kinds of the layers, from `layer_types` or from the interval of the attention layers."""
    count = huggingface.layer_count(config)
    written = config.get("layer_types")
    if isinstance(written, list):
        if len(written) != count:
            raise Unsupported(f"`layer_types` names {len(written)} layers of {count}")
        return tuple(KINDS[kind] for kind in written)
    interval = huggingface.integer(config, "full_attention_interval")
    return tuple("gdn" if interval < 1 or (i + 1) % interval else "attention" for i in range(count))


def from_hf(config: huggingface.Config) -> dict[str, Value]:
    """The figures of the stack without its MLPs. Raises `Unsupported`."""
    huggingface.refuse(config, allowed_layers=tuple(KINDS))
    if config.get("attn_output_gate") is False:
        raise Unsupported("attention without an output gate (`attn_output_gate: false`) has no region in this family")
    if config.get("mamba_ssm_dtype", "float32") != "float32":
        raise Unsupported(f"a recurrent state in {config['mamba_ssm_dtype']} has no region; it is kept in float32")
    figures = {name: huggingface.integer(config, name) for name in GDN if name != "partial_rotary_factor"}
    factor = huggingface.number(huggingface.rope(config), "partial_rotary_factor", default=0.25)
    return {
        **huggingface.ends(config),
        **huggingface.attention(config),
        **figures,
        "partial_rotary_factor": factor,
    }
