"""`contracts/contract.schema.json`: the structure with every name and value that the registries allow, for editors."""

import copy
import json
from collections.abc import Iterable, Mapping
from typing import Any

from isoexec_compiler.registry import Field, Implementation, families, implementations, ops, runtimes
from isoexec_compiler.schema.structure import SECTIONS, Schema


def schema_text() -> str:
    """The JSON Schema of a contract, as a file."""
    return json.dumps(_schema(), indent=2, ensure_ascii=False) + "\n"


def _schema() -> Schema:
    schema = copy.deepcopy(SECTIONS)
    sections = schema["properties"]
    _name(sections["model"], "family", families())
    sections["model"]["allOf"] = [
        _when("family", family.name, {"properties": {"config": _settings(family.config)}})
        for family in families().values()
    ]
    for side, table in sections["runtimes"]["properties"].items():
        _name(table, "use", [runtime.name for runtime in runtimes().values() if runtime.side == side])
    region = sections["regions"]["additionalProperties"]
    _name(region, "op", ops())
    region["allOf"] = [_when("op", op.name, _settings(op.attributes, op={"const": op.name})) for op in ops().values()]
    line = sections["composition"]["items"]
    _name(line, "use", implementations())
    line["allOf"] = [_when("use", use.name, _selection(use)) for use in implementations().values()]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "isoexec contract",
        **schema,
    }


def _name(table: Schema, key: str, names: Iterable[str]) -> None:
    table["properties"][key] = {"enum": sorted(names)}


def _when(key: str, value: str, then: Schema) -> Schema:
    return {"if": {"properties": {key: {"const": value}}, "required": [key]}, "then": then}


def _selection(use: Implementation) -> Schema:
    schema: Schema = {"properties": {}}
    if use.constants:
        schema["required"] = ["constants"]
    schema["properties"]["constants"] = _settings(use.constants)
    targets = {}
    for target, parameters in use.launch.items():
        bucket = _settings(parameters, max_rows={"type": "integer", "minimum": 1})
        bucket["required"] = list(parameters)
        targets[target] = {"oneOf": [_settings(parameters), {"type": "array", "items": bucket}]}
    schema["properties"]["launch"] = {"type": "object", "properties": targets, "additionalProperties": False}
    return schema


def _settings(fields: Mapping[str, Field], **more: Schema) -> Schema:
    properties = more | {name: _field(field) for name, field in fields.items()}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _field(field: Field) -> Schema:
    types = {"int": "integer", "float": "number", "bool": "boolean", "enum": None}
    bounds: dict[str, Any] = {
        "type": types[field.type],
        "enum": list(field.choices) or None,
        "minimum": field.minimum,
        "maximum": field.maximum,
        "multipleOf": field.multiple_of,
        "description": field.doc,
    }
    return {key: value for key, value in bounds.items() if value is not None}
