"""Reading a contract: bytes to a tree of values that know their places."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from isoexec_compiler.diagnostics import Diagnostic, sort
from isoexec_compiler.source import problems
from isoexec_compiler.source.json_reader import read_json
from isoexec_compiler.source.nodes import Data, Document, Entry, Mapping, Node, Scalar, Sequence, Value, to_data
from isoexec_compiler.source.scalars import surprise
from isoexec_compiler.source.text import MAX_PROBLEMS, Text, decode, readable, without_hidden
from isoexec_compiler.source.tree import IDENTIFIER, TreeBuilder, UnreadableError
from isoexec_compiler.source.yaml_reader import read_yaml
from isoexec_compiler.span import Span

__all__ = [
    "IDENTIFIER",
    "Data",
    "Document",
    "Entry",
    "Mapping",
    "Node",
    "Scalar",
    "Sequence",
    "Span",
    "Value",
    "read",
    "readable",
    "surprise",
    "to_data",
]


def read(data: bytes, name: str) -> tuple[Document | None, tuple[Diagnostic, ...]]:
    """The document in `data`, or None and every problem found, in order.

    A `name` that ends in `.json` is read as JSON, any other as YAML with the core schema of version 1.2. Bad input
    never raises, and large input is refused before it costs time.
    """
    text, found = decode(data, name)
    if text is None:
        return None, found
    builder = TreeBuilder()
    read_text = read_json if name.endswith(".json") else read_yaml
    with suppress(UnreadableError):
        read_text(without_hidden(text) if found else text, builder)
        _check_root(text, builder)
    diagnostics = _at_most(MAX_PROBLEMS, sort((*found, *builder.found)))
    if diagnostics or not isinstance(builder.root, Mapping):
        return None, diagnostics
    return Document(name=name, text=text.text, root=builder.root), ()


def _check_root(text: Text, builder: TreeBuilder) -> None:
    root = builder.root
    if isinstance(root, Sequence) or (isinstance(root, Scalar) and root.text):
        message = "the outermost value of a contract is a mapping"
        builder.report(problems.ROOT_NOT_MAPPING.at(root.span, message))
    elif not isinstance(root, Mapping) and not builder.found:
        builder.report(problems.EMPTY.at(text.span(0, 0), "the file holds no contract"))


def _at_most(count: int, diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    if len(diagnostics) <= count:
        return diagnostics
    return *diagnostics[: count - 1], replace(diagnostics[count - 1], note="more problems follow that are not shown")
