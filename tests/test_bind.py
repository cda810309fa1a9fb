"""Binding: what a conforming document means, and where each part of it was written."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoexec_compiler.bind import bind
from isoexec_compiler.contract import Contract, Placed, TopologyClaim
from isoexec_compiler.contract_text import contract_text
from isoexec_compiler.fields import show
from isoexec_compiler.registry import CASES
from isoexec_compiler.source import read
from isoexec_compiler.span import Span
from tests.edits import edit
from tests.fuzz.contracts import kept, mutant, text
from tests.fuzz.fuzz_contracts import check_load
from tests.update_contracts import CONTRACTS


def bound(data: bytes) -> Contract:
    document, problems = read(data, "contract.yaml")
    assert document, problems
    return bind(document)


def written(data: bytes, span: Span) -> str:
    line = data.decode().split("\n")[span.line - 1]
    return line[span.column - 1 : span.end_column - 1]


@pytest.mark.parametrize("path", sorted(CONTRACTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_text_and_contract_are_one(path: object) -> None:
    data = path.read_bytes()  # type: ignore[attr-defined]
    contract = bound(data)
    assert contract_text(contract).encode() == data
    assert bound(contract_text(contract).encode()) == contract


def test_a_whole_number_is_a_float_where_a_float_is_meant() -> None:
    whole = bound(edit("tiny_dense", ("    rope_theta: 1000000.0", "    rope_theta: 1000000")))
    assert whole == bound(edit("tiny_dense"))
    assert type(whole.model.config["rope_theta"]) is float
    assert type(whole.model.config["vocab_size"]) is int


def test_a_boolean_is_no_number() -> None:
    contract = bound(edit("tiny_dense", ("    temperature: 1.0", "    temperature: true")))
    assert contract.model.config["temperature"] is True


def test_all_means_the_cases_that_are_run() -> None:
    assert {selection.cases for selection in bound(edit("tiny_dense")).composition} == {CASES}
    fewer = bound(edit("tiny_dense", ("cases: [engine_prefill, engine_decode]}", "cases: [engine_decode]}")))
    assert {s.cases for s in fewer.composition} == {("engine_decode", "trainer_fwd", "trainer_score")}


def test_a_line_for_several_regions_makes_several_selections() -> None:
    chosen = [s for s in bound(edit("tiny_dense")).composition if s.use == "rms_norm_rows"]
    assert [s.region for s in chosen] == ["attn_norm", "q_norm", "k_norm", "mlp_norm", "final_norm"]
    assert len({(s.use, tuple(s.launch)) for s in chosen}) == 1


def test_layers_are_the_pattern_repeated() -> None:
    contract = bound(edit("tiny_dense", ("repeat: 2", "repeat: 3")))
    assert contract.model.layers == ("attention",) * 3


def test_every_part_knows_its_place() -> None:
    data = edit("tiny_dense")
    contract = bound(data)
    regions = {region.name: region for region in contract.regions}
    assert written(data, regions["attn"].span) == "attn"
    assert written(data, regions["attn"].at("head_dim")) == "32"
    assert written(data, regions["attn"].key("head_dim")) == "head_dim"
    attn = next(s for s in contract.composition if s.region == "attn")
    assert written(data, attn.at("use")) == "attention_blocks"
    for i, bucket in enumerate(attn.launch["sm90"]):
        for name, value in bucket.parameters.items():
            assert written(data, attn.at("launch", "sm90", i, name)) == show(value)
            assert written(data, attn.key("launch", "sm90", i, name)) == name
    down = next(s for s in contract.composition if s.region == "down")
    assert written(data, down.span) == "down"
    assert written(data, contract.model.at("config", "head_dim")) == "32"
    claim = next(claim for claim in contract.claims if isinstance(claim, TopologyClaim))
    assert written(data, claim.at("sizes", 2)) == "4"


def test_a_part_that_is_not_written_has_the_place_of_what_encloses_it() -> None:
    data = edit("tiny_dense")
    contract = bound(data)
    assert contract.model.at("config", "no_such_figure") == contract.model.at("config")
    assert Placed().at("anything") == Placed().span


def test_places_never_enter_equality() -> None:
    data = edit("tiny_dense")
    assert bound(b"\n\n# moved\n" + data) == bound(data)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_any_contract_passes_or_is_explained(choices: int) -> None:
    random = Random(choices)
    check_load(text(mutant(random, random.choice(kept()))))


def test_the_fuzzer_reaches_both_outcomes() -> None:
    random, contracts = Random(0), kept()
    outcomes = [check_load(text(mutant(random, random.choice(contracts)))) for _ in range(80)]
    assert 5 < outcomes.count(["passed"]) < 60
    assert len({code for codes in outcomes for code in codes}) > 8
