"""The sections of a contract and their keys, as a JSON Schema without the names that the registries give.

`conform` understands the keywords used here and no others. In `oneOf` the branches differ in type or in their first
required key.
"""

from typing import Any

from isoexec_compiler.registry import CASES, TARGETS

Schema = dict[str, Any]

LANGUAGE = 1
TOPOLOGIES = ("tp", "sp", "ep")
OBLIGATIONS = ("install", "first_forward", "weight_sync", "step")


def mapping(required: dict[str, Schema], optional: dict[str, Schema] | None = None, **more: Any) -> Schema:
    """A mapping with these keys and no others."""
    return {
        "type": "object",
        "properties": required | (optional or {}),
        "required": list(required),
        "additionalProperties": False,
    } | more


def several(items: Schema, **more: Any) -> Schema:
    """A list of at least one item, none twice."""
    return {"type": "array", "items": items, "minItems": 1, "uniqueItems": True} | more


def words(choices: tuple[str, ...], description: str) -> Schema:
    """One of a few words."""
    return {"type": "string", "enum": list(choices), "description": description}


IDENTIFIER: Schema = {
    "type": "string",
    "pattern": "^[a-z][a-z0-9_]*$",
    "description": "an identifier: lower-case letters, digits and `_`, a letter first",
}
VERSION: Schema = {
    "type": "string",
    "pattern": r"^[0-9]+(\.[0-9]+)*$",
    "description": 'an exact release in quotes, such as "0.26.0"',
}
DATE: Schema = {
    "type": "string",
    "pattern": "^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$",
    "description": "a date written YYYY-MM-DD",
}
SENTENCE: Schema = {"type": "string", "pattern": r"\S", "description": "a sentence"}
CASE = words(CASES, "a case")
SETTINGS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["number", "boolean", "string"]},
    "description": "values by name",
}

MODEL = mapping(
    {
        "family": IDENTIFIER,
        "dtype": words(("bf16", "fp32"), "dtype of weights and of the residual stream"),
        "config": SETTINGS,
        "layers": mapping(
            {
                "pattern": {"type": "array", "items": IDENTIFIER, "minItems": 1},
                "repeat": {"type": "integer", "minimum": 1, "maximum": 1000},
            },
            description="the kinds of the layers in order: `pattern`, `repeat` times",
        ),
    },
    description="what network this is; `isoexec init` writes it from a Hugging Face config",
)

RUNTIMES = mapping(
    {},
    {side: mapping({"use": IDENTIFIER, "version": VERSION, "cases": several(CASE)}) for side in ("engine", "trainer")},
    description="the framework of each side and the cases it runs",
    minProperties=1,
)

REGIONS: Schema = {
    "type": "object",
    "propertyNames": IDENTIFIER,
    "additionalProperties": SETTINGS | {"properties": {"op": IDENTIFIER}, "required": ["op"]},
    "minProperties": 1,
    "description": "every site of the model graph by name: its op and the op's attributes",
}

BUCKET = SETTINGS | {"properties": {"max_rows": {"type": "integer", "minimum": 1}}}

SELECTION = mapping(
    {
        "region": {"oneOf": [IDENTIFIER, several(IDENTIFIER)], "description": "a region, or regions that agree"},
        "cases": {"oneOf": [words(("all",), "`all` or a list of cases"), several(CASE)]},
        "use": IDENTIFIER,
    },
    {
        "constants": SETTINGS | {"description": "what pins the arithmetic, shared by the targets"},
        "launch": {
            "type": "object",
            "propertyNames": words(TARGETS, "a target"),
            "additionalProperties": {"oneOf": [SETTINGS, {"type": "array", "items": BUCKET, "minItems": 1}]},
            "description": "launch parameters of each target, or a list of them by number of rows",
        },
    },
)

CLAIMS: list[Schema] = [
    mapping(
        {
            "topology": words(TOPOLOGIES, "tensor, sequence or expert parallelism"),
            "sizes": several(
                {
                    "oneOf": [
                        {"type": "integer", "minimum": 1, "maximum": 4096},
                        words(("off", "on"), "`off`, `on` or a number"),
                    ]
                }
            ),
        },
        {"across": several(IDENTIFIER)},
        description="the same bits at every size",
    ),
    mapping(
        {"equal_bits": IDENTIFIER, "cases": several(CASE, minItems=2)},
        description="the same bits of a region in cases whose selections differ",
    ),
    mapping(
        {
            "state": IDENTIFIER,
            "invalidated_by": several(words(("weight_sync", "sleep"), "an event")),
            "resume": words(("exact",), "how a sequence resumes after preemption, a prefix hit or a chunk"),
        },
        description="what ends the life of a state that outlives a call, and how it resumes",
    ),
    mapping(
        {"tolerance": several(CASE, minItems=2, maxItems=2), "max_abs_logprob": {"type": "number", "minimum": 0}},
        description="largest difference of log-probabilities between two cases; 0 means zero differing bits",
    ),
]

WAIVER = mapping(
    {
        "obligation": words(OBLIGATIONS, "an obligation of the runtime guard"),
        "reason": SENTENCE,
        "expires": DATE,
    },
)

SECTIONS = mapping(
    {
        "isoexec": {"type": "integer", "enum": [LANGUAGE], "description": "version of the contract language"},
        "contract": IDENTIFIER,
        "model": MODEL,
        "targets": several(words(TARGETS, "a target")),
        "runtimes": RUNTIMES,
        "regions": REGIONS,
        "composition": {"type": "array", "items": SELECTION, "minItems": 1},
        "claims": {"type": "array", "items": {"oneOf": CLAIMS}},
    },
    {"waivers": {"type": "array", "items": WAIVER, "minItems": 1}},
)
