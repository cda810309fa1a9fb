"""The schema: one structure for editors and for `conform`, with a sentence and a place for every departure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import jsonschema
import pytest

from isoexec_compiler.registry import families, implementations, ops
from isoexec_compiler.schema import conform, schema_text
from isoexec_compiler.schema.structure import SECTIONS
from isoexec_compiler.source import Document, read
from isoexec_compiler.unsupported import FEATURES, asked_for
from tests.fuzz.contracts import kept, mutant
from tests.fuzz.mutate import mapping
from tests.update_contracts import CONTRACTS, SCHEMA

KEYWORDS = {
    *("type", "enum", "pattern", "minimum", "maximum", "oneOf", "description"),
    *("items", "minItems", "maxItems", "uniqueItems"),
    *("properties", "required", "additionalProperties", "propertyNames", "minProperties"),
}
STRICT = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int),
)
VALIDATOR = STRICT(SECTIONS)


def document(data: Any) -> Document:
    found, problems = read(json.dumps(data).encode(), "contract.json")
    assert found, problems
    return found


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema inside a schema."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("oneOf", [])]
    inner += [schema[key] for key in ("items", "propertyNames") if key in schema]
    inner += [schema["additionalProperties"]] if schema.get("additionalProperties") else []
    for one in inner:
        yield from schemas(one)


def test_structure_uses_only_what_conform_understands() -> None:
    assert set().union(*schemas(SECTIONS)) <= KEYWORDS


def test_branches_differ_in_type_or_first_key() -> None:
    for schema in schemas(SECTIONS):
        branches = [(branch["type"], *branch.get("required", ())[:1]) for branch in schema.get("oneOf", [])]
        assert len(set(branches)) == len(branches)


def test_schema_file_is_up_to_date() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(), "run `python -m tests.update_contracts`"


def test_editor_schema_takes_every_kept_contract() -> None:
    schema = json.loads(schema_text())
    STRICT.check_schema(schema)
    for contract in kept():
        STRICT(schema).validate(contract)


@pytest.mark.parametrize("name", sorted(implementations()))
def test_editor_schema_knows_every_implementation(name: str) -> None:
    line = {"region": "x", "cases": "all", "use": name, "constants": {"no_such_constant": 1}, "launch": {"no": {}}}
    schema = json.loads(schema_text())["properties"]["composition"]["items"]
    messages = [error.message for error in STRICT(schema).iter_errors(line)]
    assert any("no_such_constant" in message for message in messages)
    assert any("'no'" in message for message in messages)


def asks_for_a_feature(data: Any) -> bool:
    if isinstance(data, dict):
        return any(asked_for(key, value) or asks_for_a_feature(value) for key, value in data.items())
    return isinstance(data, list) and any(map(asks_for_a_feature, data))


def test_conform_agrees_with_jsonschema() -> None:
    random, contracts, verdicts = Random(0), kept(), []
    for _ in range(200):
        data = mutant(random, random.choice(contracts)) if random.random() < 0.95 else mapping(random)
        valid = VALIDATOR.is_valid(data) and not asks_for_a_feature(data)
        assert bool(conform(document(data))) != valid, data
        verdicts.append(valid)
    assert 40 < sum(verdicts) < 160


@pytest.mark.parametrize("key", sorted(FEATURES))
def test_unsupported_feature_is_refused_by_name_in_every_section(key: str) -> None:
    (contract,) = (one for one in kept() if one["contract"] == "tiny_dense")
    contract["model"]["config"][key] = True
    contract["regions"]["attn"][key] = 8
    contract["runtimes"]["trainer"][key] = "on"
    contract["composition"][0][key] = {"x": 1}
    found = conform(document(contract))
    assert [problem.code for problem in found] == ["C108"] * 4
    assert all(f"`{key}`" in problem.message for problem in found)


def test_no_feature_bears_the_name_of_a_setting() -> None:
    groups = [family.config for family in families().values()] + [op.attributes for op in ops().values()]
    for use in implementations().values():
        groups += [use.constants, *use.launch.values()]
    assert not FEATURES.keys() & {name for group in groups for name in group}


def test_an_absent_feature_is_an_ordinary_unknown_key() -> None:
    (contract,) = (one for one in kept() if one["contract"] == "tiny_dense")
    contract["runtimes"]["trainer"]["tp_comm_overlap"] = False
    assert [problem.code for problem in conform(document(contract))] == ["C103"]


def test_yaml_surprises_are_explained() -> None:
    text = (CONTRACTS / "tiny_dense.yaml").read_text(encoding="utf-8").replace("repeat: 2", "repeat: 1:30")
    found, _ = read(text.encode(), "contract.yaml")
    assert found
    (problem,) = conform(found)
    assert (problem.code, problem.help) == ("C101", "YAML 1.2 has no base-60 numbers")


def test_all_departures_are_reported_at_once() -> None:
    (contract,) = (one for one in kept() if one["contract"] == "tiny_dense")
    del contract["targets"]
    contract["model"]["dtype"] = "fp16"
    contract["contract"] = "Tiny"
    contract["composition"][2]["using"] = "x"
    assert sorted(problem.code for problem in conform(document(contract))) == ["C102", "C103", "C104", "C105"]
