"""The lock file: facts as canonical text, one leaf a line, readable by any JSON reader and merged by line.

The text is one JSON object with sorted dotted keys. It opens with the format version and closes with a sentinel, so
that every fact's line ends in a comma and a truncated file is never a valid one. A float is written as
`{"f64": "<hex>", "value": "<decimal>"}`; the bits are what counts.
"""

from __future__ import annotations

import json
import struct

from isoexec_compiler.codes import Code
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.identity import Facts, canonical
from isoexec_compiler.registry import Value
from isoexec_compiler.span import Span

NAME = "isoexec.lock"
VERSION = 1
HELP = "run `isoexec compile` on the contract and commit the result"
FIRST, LAST = "!isoexec_lock", "~end"

TRUNCATED = Code(
    id="L301",
    title="lock is cut off",
    manual="""The lock does not end with its closing sentinel: a write or a merge was cut short.

Restore it from version control, or compile the contract again.
""",
)
UNREADABLE = Code(
    id="L302",
    title="lock is not a lock",
    manual="""The lock is not a JSON object of dotted names with string, integer, boolean or float values: somebody
edited it, or a merge left conflict markers in it.

Compile the contract again and commit the result.
""",
)
NOT_CANONICAL = Code(
    id="L303",
    title="lock is not canonical",
    manual="""The lock says the same facts in another form: keys out of order, other spacing, a key twice, or CRLF line
endings. A lock is compared byte for byte, so only the canonical form is accepted.

Compile the contract again; keep editors and formatters off the file.
""",
)
UNKNOWN_VERSION = Code(
    id="L304",
    title="unknown lock version",
    manual="""The lock was written by another version of isoexec than this one reads.

Install the version that wrote it, or compile the contract again with this one.
""",
)


def dumps(facts: Facts) -> str:
    """The lock's text. Raises TypeError for a value that has no canonical form."""
    lines = [f"{json.dumps(FIRST)}: {VERSION}"]
    lines += [f"{json.dumps(key)}: {_leaf(value)}" for key, value in sorted(facts.items())]
    lines += [f"{json.dumps(LAST)}: true"]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _leaf(value: Value) -> str:
    if isinstance(value, float):
        return json.dumps({"f64": struct.pack(">d", value).hex(), "value": repr(value)})
    if isinstance(value, str | int):
        return json.dumps(value)
    raise TypeError(f"{type(value).__name__} has no place in a lock")


def read(data: bytes, file: str) -> tuple[dict[str, Value], tuple[Diagnostic, ...]]:
    """The facts of a lock's bytes, or one diagnostic (L301..L304) saying why it is refused."""
    try:
        return loads(data.decode(), file)
    except UnicodeDecodeError as error:
        place = Span(file=file, line=1, column=1, end_line=1, end_column=1)
        return {}, (UNREADABLE.at(place, f"the lock is not UTF-8: {error.reason}", help=HELP),)


def loads(text: str, file: str) -> tuple[dict[str, Value], tuple[Diagnostic, ...]]:
    """The facts of a lock's text, or one diagnostic (L301..L304) saying why it is refused."""
    place = Span(file=file, line=1, column=1, end_line=1, end_column=1)

    def refuse(code: Code, message: str) -> tuple[dict[str, Value], tuple[Diagnostic, ...]]:
        return {}, (code.at(place, message, help=HELP),)

    if not text.replace("\r\n", "\n").rstrip().endswith(f'"{LAST}": true\n}}'):
        return refuse(TRUNCATED, "the lock does not end with its closing sentinel")
    try:
        data = json.loads(text)
        facts = {key: _value(value) for key, value in data.items()}
        canonical(facts)
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError, struct.error) as error:
        return refuse(UNREADABLE, f"the lock cannot be read: {str(error)[:200]}")
    version = facts.pop(FIRST, None)
    if version != VERSION or isinstance(version, bool):
        return refuse(UNKNOWN_VERSION, f"the lock has version {version!r}; this isoexec reads version {VERSION}")
    facts.pop(LAST)
    if dumps(facts) != text:
        return refuse(NOT_CANONICAL, "the lock says its facts in another than the canonical form")
    return facts, ()


def _value(value: object) -> Value:
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, dict) and value.keys() == {"f64", "value"}:
        number: float = struct.unpack(">d", bytes.fromhex(value["f64"]))[0]
        return number
    raise ValueError(f"{json.dumps(value)[:80]} is not a fact")
