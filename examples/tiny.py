"""A tiny model, dense or with experts, with random weights on disk, and prompts of uneven length."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def shapes(model: Mapping[str, Any], layers: int) -> dict[str, tuple[int, ...]]:
    """Checkpoint names and shapes of a Qwen3 with the contract's figures."""
    hidden, vocab = model["hidden_size"], model["vocab_size"]
    size, heads, groups = model["head_dim"], model["num_attention_heads"], model["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not model["tie_word_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    for i in range(layers):
        layer = {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (heads * size, hidden),
            "self_attn.k_proj": (groups * size, hidden),
            "self_attn.v_proj": (groups * size, hidden),
            "self_attn.q_norm": (size,),
            "self_attn.k_norm": (size,),
            "self_attn.o_proj": (hidden, heads * size),
            "post_attention_layernorm": (hidden,),
        }
        if "num_experts" in model:
            layer["mlp.gate"] = (model["num_experts"], hidden)
            mlps = {f"mlp.experts.{expert}": model["moe_intermediate_size"] for expert in range(model["num_experts"])}
        else:
            mlps = {"mlp": model["intermediate_size"]}
        for mlp, inner in mlps.items():
            layer |= {f"{mlp}.{part}_proj": (inner, hidden) for part in ("gate", "up")}
            layer[f"{mlp}.down_proj"] = (hidden, inner)
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return found


def write_model(folder: Path, contract: Mapping[str, Any], *, seed: int = 0) -> None:
    """`config.json` and `model.safetensors` of a random model whose logits spread over several units."""
    model, layers = contract["model"]["config"], len(contract["model"]["layers"])
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in shapes(model, layers).items():
        values = torch.randn(shape, generator=generator)
        values = 1 + 0.1 * values if len(shape) == 1 else values * 1.5 / shape[1] ** 0.5
        tensors[name] = values.to(DTYPES[contract["model"]["dtype"]])
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    family = contract["model"]["family"]
    config = {
        "architectures": [{"qwen3": "Qwen3ForCausalLM", "qwen3_moe": "Qwen3MoeForCausalLM"}[family]],
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": {"bf16": "bfloat16", "fp32": "float32"}[contract["model"]["dtype"]],
        **{k: v for k, v in model.items() if k not in ("padded_vocab_size", "temperature")},
    }
    (folder / "config.json").write_text(json.dumps(config))


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
