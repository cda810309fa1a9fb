"""Reading a Hugging Face config.json: names of old and of 5.x releases, and refusal of what no region of ours computes.

Raises `Unsupported` with every reason at once.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from isoexec_compiler.registry import Unsupported, Value

Config = Mapping[str, Any]

# Eight equal leaves of whole 16-column vectors; also what Megatron pads to on one rank.
VOCAB_MULTIPLE = 128

MAX_LAYERS = 1000


def text_config(config: Config) -> dict[str, Any]:
    """The part that describes the language model, with what only the outer level of a multimodal config says."""
    inner = config.get("text_config")
    if not isinstance(inner, Mapping):
        return dict(config)
    outer = {key: config[key] for key in ("tie_word_embeddings", "quantization_config") if key in config}
    return {**outer, **inner}


def dtype(config: Config) -> str:
    """The model dtype, `bf16` or `fp32`."""
    written = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    known = {"bfloat16": "bf16", "float32": "fp32"}
    if written not in known:
        raise Unsupported(f"the weights are {written}; regions are written for bfloat16 and float32")
    return known[written]


def rope(config: Config) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` or from `rope_theta` and its neighbours."""
    settings = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if config.get(key) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        written = config.get(key)
        settings |= written if isinstance(written, Mapping) else {}
    return settings


def integer(config: Config, *names: str) -> int:
    """The first of `names` that is present, as an integer."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**31:
            return value
    raise Unsupported(f"the config has no whole number {names[0]!r}")


def layer_count(config: Config) -> int:
    """The number of layers."""
    count = integer(config, "num_hidden_layers")
    if not 0 < count <= MAX_LAYERS:
        raise Unsupported(f"`num_hidden_layers` is 1 to {MAX_LAYERS}, not {count}")
    return count


def number(config: Config, name: str, default: float | None = None) -> float:
    """A value as a float; `default` where it is absent."""
    value = config.get(name, default)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    raise Unsupported(f"the config has no number {name!r}")


def ends(config: Config) -> dict[str, Value]:
    """The figures of the two ends of the model."""
    vocab = integer(config, "vocab_size")
    return {
        "vocab_size": vocab,
        "padded_vocab_size": -(-vocab // VOCAB_MULTIPLE) * VOCAB_MULTIPLE,
        "hidden_size": integer(config, "hidden_size"),
        "rms_norm_eps": number(config, "rms_norm_eps"),
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", False)),
        "temperature": 1.0,
    }


def attention(config: Config) -> dict[str, Value]:
    """The figures of an attention block."""
    heads = integer(config, "num_attention_heads")
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": integer(config, "num_key_value_heads"),
        "head_dim": integer(
            {"head_dim": integer(config, "hidden_size") // max(heads, 1)} | _present(config), "head_dim"
        ),
        "rope_theta": number(rope(config), "rope_theta", default=10000.0),
        "max_position_embeddings": integer(config, "max_position_embeddings"),
    }


def refuse(config: Config, allowed_layers: tuple[str, ...]) -> None:
    """Raises `Unsupported` when the config asks for something that no family here computes."""
    reasons = tuple(_reasons(config, allowed_layers))
    if reasons:
        raise Unsupported("; ".join(reasons))


def _reasons(config: Config, allowed_layers: tuple[str, ...]) -> Iterator[str]:
    if quantised := config.get("quantization_config"):
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, Mapping) else quantised
        yield f"the checkpoint is quantised ({method}); only bfloat16 and float32 weights have regions"
    if config.get("kv_lora_rank") or config.get("q_lora_rank"):
        yield "multi-head latent attention (`kv_lora_rank`) has no region"
    if config.get("use_sliding_window") or (config.get("sliding_window") and "use_sliding_window" not in config):
        yield f"sliding-window attention (`sliding_window: {config.get('sliding_window')}`) has no region"
    if config.get("attention_bias"):
        yield "biased projections (`attention_bias`) have no region"
    if config.get("hidden_act", "silu") != "silu":
        yield f"the activation {config['hidden_act']!r} has no region; `silu` has"
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        yield "soft-capped logits have no region"
    settings = rope(config)
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind != "default":
        yield f"scaled rotary frequencies (rope type {kind!r}) have no region"
    kinds = config.get("layer_types")
    unknown = sorted({str(kind) for kind in kinds if kind not in allowed_layers}) if isinstance(kinds, list) else ()
    if unknown:
        yield f"layers of type {', '.join(map(repr, unknown))} have no region"


def _present(config: Config) -> dict[str, Any]:
    """The config without what is null."""
    return {key: value for key, value in config.items() if value is not None}
