"""`isoexec init`: published configs give sound contracts; what has no region is refused in one sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoexec_compiler import pipeline
from isoexec_compiler.init import contract_from, contract_text
from isoexec_compiler.registry import Unsupported, implementations
from tests.fuzz.mutate import value
from tests.update_contracts import CONFIGS, contracts


def config(name: str, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_bytes())
    return {key: value for key, value in {**found, **changes}.items() if value is not ...}


@pytest.mark.parametrize("path", sorted(contracts()), ids=lambda path: path.stem)
def test_kept_contracts_are_what_init_writes(path: Any) -> None:
    assert path.read_text(encoding="utf-8") == contracts()[path], "run `python -m tests.update_contracts`"


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("qwen3_0_6b", {}),
        ("qwen3_0_6b", {"hidden_size": 2048, "intermediate_size": 6144}),  # 1.7B
        ("qwen3_8b", {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}),  # 4B
        ("qwen3_8b", {"hidden_size": 5120, "intermediate_size": 17408, "num_attention_heads": 40}),  # 14B
        ("qwen3_8b", {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64}),  # 32B
        (
            "qwen3_30b_a3b",
            {"hidden_size": 4096, "moe_intermediate_size": 1536, "num_attention_heads": 64, "num_hidden_layers": 94},
        ),  # 235B-A22B
    ],
)
def test_the_families_other_models_have_contracts(base: str, changes: dict[str, Any]) -> None:
    text = contract_text(config(base, **changes), "model")
    contract, problems = pipeline.load(text.encode(), "model.yaml")
    assert contract, problems
    assert "{topology: tp, sizes: [1, 2, 4, 8], across: [engine, trainer]}" in text


def test_every_constant_and_launch_parameter_is_written() -> None:
    contract, _ = pipeline.load(contract_text(config("tiny_moe"), "x").encode(), "x.yaml")
    assert contract
    for selection in contract.composition:
        use = implementations()[selection.use]
        assert selection.constants.keys() == use.constants.keys()
        for target, fields in use.launch.items():
            assert all(bucket.parameters.keys() == fields.keys() for bucket in selection.launch[target])


def test_new_names_mean_what_old_names_meant() -> None:
    old = config("qwen3_8b")
    new = config(
        "qwen3_8b",
        torch_dtype=...,
        dtype="bfloat16",
        rope_theta=...,
        rope_scaling=...,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000},
        layer_types=["full_attention"] * 36,
    )
    assert contract_text(new, "x") == contract_text(old, "x")
    nested = {"model_type": "qwen3_vl", "text_config": new, "vision_config": {"depth": 27}}
    assert contract_text(nested, "x") == contract_text(old, "x")


def test_a_head_dim_that_is_not_written_is_the_quotient() -> None:
    assert contract_text(config("qwen3_8b", head_dim=...), "x") == contract_text(config("qwen3_8b"), "x")


def test_fp32_has_no_sm90_kernels_and_check_says_so() -> None:
    _, problems = pipeline.load(contract_text(config("qwen3_8b", torch_dtype="float32"), "x").encode(), "x.yaml")
    assert {problem.code for problem in problems} == {"K214"}


def test_the_hybrid_family_reads_an_interval_and_older_names() -> None:
    published = config("qwen3_5_35b_a3b")
    text = dict(published["text_config"])
    flat = {**text, "model_type": "qwen3_next", "rope_theta": 10000000, "partial_rotary_factor": 0.25}
    del flat["layer_types"], flat["rope_parameters"]
    assert contract_text(flat, "x") == contract_text(published, "x")


def test_dense_hybrid_models_have_contracts() -> None:
    text = {**config("qwen3_5_35b_a3b")["text_config"], "model_type": "qwen3_5_text", "intermediate_size": 6144}
    contract, problems = pipeline.load(contract_text(text, "x").encode(), "x.yaml")
    assert contract, problems
    assert contract.model.family == "qwen3_5"


def nested(**changes: Any) -> dict[str, Any]:
    """A change of the text part."""
    return {"text_config": {**config("qwen3_5_35b_a3b")["text_config"], **changes}}


REFUSED = {
    "quantised": ("qwen3_8b", {"quantization_config": {"quant_method": "fp8"}}),
    "latent": ("qwen3_8b", {"kv_lora_rank": 512}),
    "sliding-window": ("qwen3_8b", {"use_sliding_window": True, "sliding_window": 4096}),
    "4096": ("qwen3_8b", {"use_sliding_window": ..., "sliding_window": 4096}),
    "sliding_attention": ("qwen3_8b", {"layer_types": ["full_attention", "sliding_attention"] * 18}),
    "biased": ("qwen3_8b", {"attention_bias": True}),
    "yarn": ("qwen3_8b", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    "linear": ("qwen3_8b", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "dynamic": ("qwen3_8b", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e6}}),
    "gelu": ("qwen3_8b", {"hidden_act": "gelu"}),
    "float16": ("qwen3_8b", {"torch_dtype": "float16"}),
    "soft-capped": ("qwen3_8b", {"attn_logit_softcapping": 30.0}),
    "mlp_only_layers": ("qwen3_30b_a3b", {"mlp_only_layers": [0]}),
    "decoder_sparse_step": ("qwen3_30b_a3b", {"decoder_sparse_step": 2}),
    "deepseek_v3": ("qwen3_8b", {"model_type": "deepseek_v3"}),
    "without `model_type`": ("qwen3_8b", {"model_type": ...}),
    "num_key_value_heads": ("qwen3_8b", {"num_key_value_heads": ...}),
    "rms_norm_eps": ("qwen3_8b", {"rms_norm_eps": ...}),
    "vocab_size": ("qwen3_8b", {"vocab_size": "many"}),
    "recurrent state in bfloat16": ("qwen3_5_35b_a3b", nested(mamba_ssm_dtype="bfloat16")),
    "attn_output_gate": ("qwen3_5_35b_a3b", nested(attn_output_gate=False)),
    "40 layers of 41": ("qwen3_5_35b_a3b", nested(num_hidden_layers=41)),
    "awq": ("qwen3_5_35b_a3b", {"quantization_config": {"quant_method": "awq"}}),
}


@pytest.mark.parametrize("named", sorted(REFUSED))
def test_what_has_no_region_is_refused_by_name(named: str) -> None:
    base, changes = REFUSED[named]
    data = json.dumps(config(base, **changes)).encode()
    text, problems = contract_from(data, "config.json")
    assert text is None
    (problem,) = problems
    assert problem.code == "U410"
    assert named in problem.message


def test_everything_in_the_way_is_named_at_once() -> None:
    with pytest.raises(Unsupported) as caught:
        contract_text(config("qwen3_8b", attention_bias=True, hidden_act="relu", kv_lora_rank=8), "x")
    assert all(word in str(caught.value) for word in ("attention_bias", "relu", "kv_lora_rank"))


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"null", b'"x"', b"{" * 100_000, b'{"model_type": 7}', b"{}"])
def test_bytes_that_are_no_config_are_refused(data: bytes) -> None:
    text, problems = contract_from(data, "config.json")
    assert text is None
    assert [problem.code for problem in problems] == ["U410"]


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Qwen3-8B/config.json", "qwen3_8b"),
        ("qwen3.5-35B.json", "qwen3_5_35b"),
        ("config.json", "qwen3"),
        ("4b.json", "qwen3"),
    ],
)
def test_a_contract_is_named_after_its_config(file: str, name: str) -> None:
    text, _ = contract_from((CONFIGS / "qwen3_8b.json").read_bytes(), file)
    assert text
    assert text.split("\n")[1] == f"contract: {name}"


def test_the_text_is_the_same_in_every_process() -> None:
    path = str(CONFIGS / "tiny_moe.json")
    script = f"from isoexec_compiler.init import *; print(contract_from(open({path!r}, 'rb').read(), 'a')[0])"
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "random")
    }
    assert len(texts) == 1


def test_leaves_that_no_step_divides_are_refused_for_that_alone() -> None:
    text, _ = contract_from(json.dumps({**config("tiny_moe"), "num_attention_heads": 7}).encode(), "config.json", "x")
    assert text
    assert {problem.code for problem in pipeline.load(text.encode(), "x.yaml")[1]} == {"K216"}


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32))
def test_any_config_gives_a_contract_or_one_sentence(choices: int) -> None:
    random = Random(choices)
    base = config(random.choice(["qwen3_8b", "qwen3_30b_a3b", "tiny_moe", "qwen3_5_tiny"]))
    base = {**base, **base.pop("text_config", {})}
    for _ in range(random.choice([1, 2, 3])):
        base[random.choice(list(base))] = random.choice([value(random), -1, 0, 1, 7, 2**70, True, None, "x"])
    text, problems = contract_from(json.dumps(base).encode(), "config.json", "x")
    assert (text is None) == (len(problems) == 1)
    if text:
        _, found = pipeline.load(text.encode(), "x.yaml")
        assert {problem.code for problem in found} <= {"K204", "K214", "K216"}, found
