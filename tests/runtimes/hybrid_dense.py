"""A tiny dense hybrid: the contract that `isoexec init` makes of a checkpoint's configuration, compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isoexec_compiler import init
from tests.runtimes import conftest

CONFIG = {
    "model_type": "qwen3_5_text",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "torch_dtype": "bfloat16",
}


def workplace(root: Path) -> conftest.Workplace:
    """The hybrid stack with a gated MLP in every layer."""
    text, problems = init.contract_from(json.dumps(CONFIG).encode(), "config.json", "dense_hybrid")
    assert text is not None, problems
    (root / "contracts").mkdir()
    (root / "contracts" / "dense_hybrid.yaml").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "CONTRACTS", root / "contracts")
        return conftest.Workplace(root, "bf16", "dense_hybrid")
