"""The core schema of YAML 1.2: what an unquoted scalar means."""

from __future__ import annotations

import math
import re

from isoexec_compiler.source.nodes import Value

_INTEGERS = (
    (re.compile(r"[-+]?[0-9]+"), 10),
    (re.compile(r"0o[0-7]+"), 8),
    (re.compile(r"0x[0-9a-fA-F]+"), 16),
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {"": None, "~": None} | {
    form: value
    for word, value in (("null", None), ("true", True), ("false", False))
    for form in (word, word.capitalize(), word.upper())
}
_LONGEST_INTEGER = 70

_OTHER_BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_OTHER_NUMBERS = (
    (re.compile(r"[-+]?[0-9][0-9,]*(_[0-9]+)+(\.[0-9]*)?"), "write a number without `_`"),
    (re.compile(r"[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?"), "YAML 1.2 has no base-60 numbers"),
    (re.compile(r"0b[01_]+"), "YAML 1.2 has no binary numbers; write it in decimal, `0o` octal or `0x` hexadecimal"),
    (re.compile(r"[-+]?(inf|nan|infinity)", re.IGNORECASE), "write a finite number"),
)


def resolve(text: str) -> Value:
    """The value of an unquoted scalar.

    Raises OverflowError for an integer outside 64 bits and ValueError for a number that is not a finite float64.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "-+.0123456789":
        return text
    for pattern, base in _INTEGERS:
        if pattern.fullmatch(text):
            return _in_range(text, base)
    if _FLOAT.fullmatch(text):
        return _finite(text)
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(text)
    return text


def _in_range(text: str, base: int) -> int:
    if len(text) > _LONGEST_INTEGER or not -(2**63) <= int(text, base) < 2**63:
        raise OverflowError(text)
    return int(text, base)


def _finite(text: str) -> float:
    number = float(text)
    mantissa = re.split("[eE]", text)[0]
    vanished = number == 0.0 and mantissa.strip("-+0.")
    if math.isinf(number) or vanished:
        raise ValueError(text)
    return number


def surprise(text: str) -> str | None:
    """Advice for a string that its author may have meant as a boolean or a number, or None."""
    if meant := _OTHER_BOOLEANS.get(text.lower()):
        return f"in YAML 1.2 `{text}` is a string; write `{meant}`"
    return next((advice for pattern, advice in _OTHER_NUMBERS if pattern.fullmatch(text)), None)
