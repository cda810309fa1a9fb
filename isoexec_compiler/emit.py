"""Levels of the pipeline as JSON, for people who want to look inside."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass

from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.source import read, to_data


def document(data: bytes, name: str) -> tuple[str | None, tuple[Diagnostic, ...]]:
    """The document as plain JSON, or None and what is wrong with it."""
    found, problems = read(data, name)
    return (None if found is None else text(to_data(found.root))), problems


def text(value: object) -> str:
    """A contract, a plan or a map of files as indented JSON; places in the source are left out."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value) if f.compare}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value
