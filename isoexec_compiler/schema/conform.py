"""A document against the schema: every departure, where it stands, as a sentence.

A JSON Schema validator reports paths into plain data; this one walks the positioned tree. A test holds it to the
verdict of `jsonschema`.
"""

import re
from collections.abc import Callable, Iterator

from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.schema import problems
from isoexec_compiler.schema.structure import LANGUAGE, SECTIONS, Schema
from isoexec_compiler.source import Document, Mapping, Node, Scalar, Sequence, surprise, to_data
from isoexec_compiler.unsupported import FEATURES, UNSUPPORTED, asked_for

_TYPE_NAMES = {
    "object": "a mapping",
    "array": "a list",
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "`true` or `false`",
}


def conform(document: Document) -> tuple[Diagnostic, ...]:
    """Everything in the document that is not as the schema says."""
    version = document.root.get("isoexec")
    if isinstance(version, Scalar) and type(version.value) is int and version.value != LANGUAGE:
        message = f"contract language {version.text}; this compiler reads {LANGUAGE}"
        return (problems.LANGUAGE_VERSION.at(version.span, message),)
    return tuple(_check(document.root, SECTIONS, "a contract"))


def _check(node: Node, schema: Schema, name: str) -> Iterator[Diagnostic]:
    if "oneOf" in schema:
        yield from _check_branch(node, schema["oneOf"], name)
        return
    expected = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    if not any(_is(node, each) for each in expected):
        yield _wrong_type(node, expected, name)
        return
    match node:
        case Scalar():
            yield from _check_scalar(node, schema, name)
        case Sequence():
            yield from _check_sequence(node, schema, name)
        case Mapping():
            yield from _check_mapping(node, schema, name)


def _check_branch(node: Node, branches: list[Schema], name: str) -> Iterator[Diagnostic]:
    """Against the branch that the author meant: the one of the node's type and, of mappings, with its first key."""
    fitting = [branch for branch in branches if _is(node, branch["type"])]
    if isinstance(node, Mapping) and len(fitting) > 1:
        firsts = [branch["required"][0] for branch in fitting]
        fitting = [branch for branch in fitting if node.entry(branch["required"][0])]
        if not fitting:
            listed = ", ".join(f"`{first}`" for first in firsts)
            near = next((n for entry in node.entries if (n := suggest(entry.key, firsts))), None)
            message = f"{name} has one of the keys {listed}"
            yield problems.MISSING_KEY.at(node.span, message, help=near and f"did you mean `{near}`?")
            return
    if fitting:
        yield from _check(node, fitting[0], name)
    else:
        yield _wrong_type(node, [branch["type"] for branch in branches], name)


def _check_scalar(node: Scalar, schema: Schema, name: str) -> Iterator[Diagnostic]:
    value = node.value
    if "enum" in schema and value not in schema["enum"]:
        words = [str(word) for word in schema["enum"]]
        near = suggest(str(value), words)
        yield problems.UNKNOWN_WORD.at(
            node.span,
            f"`{node.text}` is not {_article(schema, name)}",
            note=None if near else f"there are: {', '.join(words)}",
            help=f"did you mean `{near}`?" if near else None,
        )
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield problems.MALFORMED.at(node.span, f"`{node.text}` is not {schema['description']}")
    if isinstance(value, int | float):
        if value < schema.get("minimum", value):
            yield problems.OUT_OF_RANGE.at(node.span, f"{name} is at least {schema['minimum']}, not {node.text}")
        if value > schema.get("maximum", value):
            yield problems.OUT_OF_RANGE.at(node.span, f"{name} is at most {schema['maximum']}, not {node.text}")


def _check_sequence(node: Sequence, schema: Schema, name: str) -> Iterator[Diagnostic]:
    count = len(node.items)
    least, most = schema.get("minItems", 0), schema.get("maxItems", count)
    if not least <= count <= most:
        bound = f"at least {least}" if count < least else f"at most {most}"
        yield problems.OUT_OF_RANGE.at(
            node.span, f"{name} has {bound} {_items(least if count < least else most)}, not {count}"
        )
    seen = set()
    for item in node.items:
        if schema.get("uniqueItems") and isinstance(item, Scalar):
            if (type(item.value) is bool, item.value) in seen:
                yield problems.OUT_OF_RANGE.at(item.span, f"{name} names `{item.text}` twice")
            seen.add((type(item.value) is bool, item.value))
        yield from _check(item, schema["items"], f"an item of {name}")


def _check_mapping(node: Mapping, schema: Schema, name: str) -> Iterator[Diagnostic]:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", False)
    for key in schema.get("required", ()):
        if node.entry(key) is None:
            yield problems.MISSING_KEY.at(node.span, f"{name} has no `{key}`", help=_meaning(key, properties[key]))
    if len(node.entries) < schema.get("minProperties", 0):
        yield problems.OUT_OF_RANGE.at(node.span, f"{name} is empty")
    for entry in node.entries:
        if asked_for(entry.key, to_data(entry.value)):
            feature, reason = FEATURES[entry.key]
            yield UNSUPPORTED.at(
                entry.key_span, f"`{entry.key}` asks for {feature}, which nothing here computes", note=reason
            )
        elif entry.key in properties:
            yield from _check(entry.value, properties[entry.key], f"`{entry.key}`")
        elif others:
            key = Scalar(value=entry.key, text=entry.key, span=entry.key_span)
            yield from _check(key, schema.get("propertyNames", {"type": "string"}), f"a key of {name}")
            yield from _check(entry.value, others, f"`{entry.key}`")
        else:
            near = suggest(entry.key, properties)
            yield problems.UNKNOWN_KEY.at(
                entry.key_span,
                f"{name} has no key `{entry.key}`",
                note=None if near else f"there are: {', '.join(properties)}",
                help=f"did you mean `{near}`?" if near else None,
            )


def _is(node: Node, kind: str) -> bool:
    value = node.value if isinstance(node, Scalar) else None
    tests: dict[str, Callable[[], bool]] = {
        "object": lambda: isinstance(node, Mapping),
        "array": lambda: isinstance(node, Sequence),
        "string": lambda: isinstance(value, str),
        "boolean": lambda: isinstance(value, bool),
        "integer": lambda: isinstance(value, int) and not isinstance(value, bool),
        "number": lambda: isinstance(value, int | float) and not isinstance(value, bool),
    }
    return tests[kind]()


def _wrong_type(node: Node, expected: list[str], name: str) -> Diagnostic:
    wanted = " or ".join(_TYPE_NAMES[kind] for kind in dict.fromkeys(expected))
    help = surprise(node.text) if isinstance(node, Scalar) and isinstance(node.value, str) else None
    if expected == ["string"] and isinstance(node, Scalar) and isinstance(node.value, int | float):
        help = f'put it in quotes: "{node.text}"'
    return problems.WRONG_TYPE.at(node.span, f"{name} is {wanted}, not {_kind(node)}", help=help)


def _kind(node: Node) -> str:
    if isinstance(node, Mapping | Sequence):
        return _TYPE_NAMES["object" if isinstance(node, Mapping) else "array"]
    if node.value is None:
        return "nothing"
    kinds = {str: "the string", bool: "the boolean", int: "the number", float: "the number"}
    return f"{kinds[type(node.value)]} `{node.text}`"


def _article(schema: Schema, name: str) -> str:
    return str(schema.get("description", f"a value of {name}"))


def _meaning(key: str, schema: Schema) -> str | None:
    description = schema.get("description")
    return f"`{key}`: {description}" if description else None


def _items(count: int) -> str:
    return "item" if count == 1 else "items"
