"""A tiny model of any family, with random weights on disk, and prompts of uneven length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ARCHITECTURES = {
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "qwen3_moe"),
    "qwen3_5": ("Qwen3_5ForCausalLM", "qwen3_5_text"),
    "qwen3_5_moe": ("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text"),
}


def shapes(contract: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Checkpoint names and shapes of the contract's model."""
    model, layers = contract["model"]["config"], contract["model"]["layers"]
    hidden, vocab = model["hidden_size"], model["vocab_size"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not model["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i, kind in enumerate(layers):
        layer = {"input_layernorm.weight": (hidden,)}
        layer |= _attention(model) if kind == "attention" else _linear_attention(model)
        layer |= {"post_attention_layernorm.weight": (hidden,), **_mlp(model)}
        found |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return found


def _attention(model: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """In a model that also has linear attention a gate is projected beside each query head."""
    hidden, size = model["hidden_size"], model["head_dim"]
    heads, groups = model["num_attention_heads"], model["num_key_value_heads"]
    queries = heads * 2 if "linear_num_key_heads" in model else heads
    rows = {"q_proj": queries * size, "k_proj": groups * size, "v_proj": groups * size}
    return {
        **{f"self_attn.{name}.weight": (count, hidden) for name, count in rows.items()},
        "self_attn.q_norm.weight": (size,),
        "self_attn.k_norm.weight": (size,),
        "self_attn.o_proj.weight": (hidden, heads * size),
    }


def _linear_attention(model: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = model["hidden_size"], model["linear_num_value_heads"]
    outputs = heads * model["linear_value_head_dim"]
    channels = 2 * model["linear_num_key_heads"] * model["linear_key_head_dim"] + outputs
    rows = {"in_proj_qkv": channels, "in_proj_z": outputs, "in_proj_b": heads, "in_proj_a": heads}
    return {
        **{f"linear_attn.{name}.weight": (count, hidden) for name, count in rows.items()},
        "linear_attn.conv1d.weight": (channels, 1, model["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (model["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, outputs),
    }


def _mlp(model: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, found = model["hidden_size"], dict[str, tuple[int, ...]]()
    if "num_experts" in model:
        found["mlp.gate.weight"] = (model["num_experts"], hidden)
        mlps = {f"mlp.experts.{expert}": model["moe_intermediate_size"] for expert in range(model["num_experts"])}
    else:
        mlps = {"mlp": model["intermediate_size"]}
    if "shared_expert_intermediate_size" in model:
        found["mlp.shared_expert_gate.weight"] = (1, hidden)
        mlps["mlp.shared_expert"] = model["shared_expert_intermediate_size"]
    for mlp, inner in mlps.items():
        found |= {f"{mlp}.{part}_proj.weight": (inner, hidden) for part in ("gate", "up")}
        found[f"{mlp}.down_proj.weight"] = (hidden, inner)
    return found


def weights(contract: Mapping[str, Any], *, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Random weights whose logits spread over several units, and whose GDN states live for some tokens.

    Another kind of device draws other numbers.
    """
    regions, dtype = contract["regions"], DTYPES[contract["model"]["dtype"]]
    centre = 0 if regions["final_norm"]["attributes"]["gamma"] == "one_plus" else 1
    generator, tensors = torch.Generator(device).manual_seed(seed), {}
    for name, shape in shapes(contract).items():
        values = torch.randn(shape, generator=generator, device=device)
        match name.rsplit(".", 2)[-2:]:
            case [_, "A_log" | "dt_bias"]:
                tensors[name] = 0.5 * values - 1  # they stay in fp32
                continue
            case ["norm", _] if "linear_attn" in name:
                values = 1 + 0.1 * values
            case _:
                values = centre + 0.1 * values if len(shape) == 1 else values * 1.5 / shape[-1] ** 0.5
        tensors[name] = values.to(dtype)
    return tensors


def write_model(folder: Path, contract: Mapping[str, Any], *, seed: int = 0, device: str = "cpu") -> None:
    """`config.json` and `model.safetensors` of a random model."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights(contract, seed=seed, device=device), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(_config(contract["model"])))


def _config(model: Mapping[str, Any]) -> dict[str, Any]:
    """What Hugging Face's `config.json` says of the model."""
    figures = {k: v for k, v in model["config"].items() if k not in ("padded_vocab_size", "temperature")}
    architecture, model_type = ARCHITECTURES[model["family"]]
    if "partial_rotary_factor" in figures:
        rope = {name: figures.pop(name) for name in ("rope_theta", "partial_rotary_factor")}
        kinds = {"gdn": "linear_attention", "attention": "full_attention"}
        figures["rope_parameters"] = {"rope_type": "default", **rope}
        figures["layer_types"] = [kinds[kind] for kind in model["layers"]]
        figures["attn_output_gate"] = True
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "num_hidden_layers": len(model["layers"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": {"bf16": "bfloat16", "fp32": "float32"}[model["dtype"]],
        **figures,
    }


def prompts(count: int, vocab: int, longest: int, *, seed: int = 1) -> list[list[int]]:
    """`count` prompts of 1 to `longest` tokens; every third shares a long prefix, so that a prefix cache can hit."""
    generator = torch.Generator().manual_seed(seed)
    shared = torch.randint(0, vocab, (longest,), generator=generator).tolist()
    made = []
    for i in range(count):
        length = 1 + int(torch.randint(0, longest, (1,), generator=generator)) if i else 1
        own = torch.randint(0, vocab, (length,), generator=generator).tolist()
        made.append((shared[: longest * 2 // 3] + own)[:longest] if i % 3 == 2 else own)
    return made
