"""The model graphs: published figures give published shapes, and every site fits its op."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest

from isoexec_compiler import huggingface
from isoexec_compiler.fields import sound
from isoexec_compiler.registry import Family, Site, Values, families, ops
from tests.update_contracts import CONFIGS


def model(name: str) -> tuple[Family, Values, tuple[str, ...], dict[str, Site]]:
    config = huggingface.text_config(json.loads((CONFIGS / f"{name}.json").read_bytes()))
    (family,) = (one for one in families().values() if config["model_type"] in one.model_types)
    figures, layers = family.from_hf(config)
    return family, figures, layers, {site.name: site for site in family.sites(figures, layers)}


@pytest.fixture(params=sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def any_model(request: pytest.FixtureRequest) -> tuple[Family, Values, tuple[str, ...], dict[str, Site]]:
    path: Path = request.param
    return model(path.stem)


def test_figures_fill_the_fields(any_model: tuple[Family, Values, tuple[str, ...], dict[str, Site]]) -> None:
    family, figures, layers, _ = any_model
    assert sound(figures, family.config)
    assert set(layers) <= set(family.layer_kinds)


def test_sites_fit_their_ops(any_model: tuple[Family, Values, tuple[str, ...], dict[str, Site]]) -> None:
    family, figures, layers, sites = any_model
    assert len(sites) == len(family.sites(figures, layers))
    for site in sites.values():
        assert sound(site.attributes, ops()[site.op].attributes), site
        assert (site.extent > 0) == (site.split != "none"), site
        assert set(site.layers) <= set(range(len(layers)))


def test_every_layer_has_a_mixer_and_an_mlp(any_model: tuple[Family, Values, tuple[str, ...], dict[str, Site]]) -> None:
    *_, layers, sites = any_model
    assert [name for name, site in sites.items() if not site.layers] == ["embed", "final_norm", "head", "logprobs"]
    for layer, kind in enumerate(layers):
        held = {name for name, site in sites.items() if layer in site.layers}
        assert {"attn_norm", "attn_residual", "mlp_norm", "mlp_residual"} <= held
        assert [name for name in ("attn", "gdn_core") if name in held] == [
            {"attention": "attn", "gdn": "gdn_core"}[kind]
        ]


def weights(sites: dict[str, Site], figures: Values) -> int:
    """The number of parameters that matmuls, experts, the router and the embedding hold."""
    total = 0
    for site in sites.values():
        a, copies = site.attributes, len(site.layers) or 1
        match site.op:
            case "matmul" if site.name != "head" or not figures["tie_word_embeddings"]:
                total += copies * int(a["n"]) * int(a["k"])
            case "embedding":
                total += int(a["vocab"]) * int(a["width"])
            case "expert_gate_up":
                total += copies * 2 * prod(int(a[name]) for name in ("experts", "hidden", "width"))
            case "expert_down":
                total += copies * prod(int(a[name]) for name in ("experts", "hidden", "width"))
            case "router":
                total += copies * int(a["hidden"]) * int(a["experts"])
    return total


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen3_0_6b", 0.596), ("qwen3_8b", 8.19), ("qwen3_30b_a3b", 30.53), ("qwen3_5_35b_a3b", 34.66)],
)
def test_parameters_add_up_to_the_published_size(name: str, billions: float) -> None:
    _, figures, _, sites = model(name)
    assert weights(sites, figures) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_qwen3_8b_shapes() -> None:
    *_, layers, sites = model("qwen3_8b")
    assert len(layers) == 36
    assert sites["qkv"].attributes == {"n": 6144, "k": 4096, "split": "columns", "out": "model"}
    assert sites["down"].attributes == {"n": 4096, "k": 12288, "split": "rows", "out": "model"}
    assert sites["head"].attributes["out"] == "fp32"
    assert sites["attn"].attributes["scale"] == 128**-0.5


def test_qwen3_5_35b_a3b_shapes() -> None:
    *_, layers, sites = model("qwen3_5_35b_a3b")
    assert layers == ("gdn", "gdn", "gdn", "attention") * 10
    assert sites["gdn_in"].attributes["n"] == 12352
    assert sites["gdn_conv"].attributes["channels"] == 8192
    assert sites["qkv"].attributes["n"] == 9216
    assert sites["rope"].attributes["rotary_dim"] == 64
    assert sites["gdn_out"].attributes["k"] == sites["attn_out"].attributes["k"] == 4096
    assert sites["attn_norm"].attributes["gamma"] == sites["q_norm"].attributes["gamma"] == "one_plus"
    assert sites["gdn_core"].layers == tuple(i for i in range(40) if i % 4 != 3)


def test_router_weights_that_sum_to_one_are_a_softmax_over_the_chosen() -> None:
    family, figures, layers, _ = model("qwen3_30b_a3b")
    for normalised, softmax in ((True, "selected"), (False, "all")):
        sites = {site.name: site for site in family.sites({**figures, "norm_topk_prob": normalised}, layers)}
        assert sites["router"].attributes["softmax"] == softmax


def test_the_expert_weight_is_applied_once() -> None:
    family, figures, layers, _ = model("tiny_moe")
    for place in ("activation", "output"):
        sites = {site.name: site for site in family.sites({**figures, "expert_weight_on": place}, layers)}
        assert sites["expert_act"].attributes["weighted"] == (place == "activation")
        assert sites["expert_combine"].attributes["weighted"] == (place == "output")
