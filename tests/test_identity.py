"""Canonical bytes and digests: golden vectors, and a second implementation that shares no code with the first."""

from __future__ import annotations

import hashlib
import io
import math
import struct
import tokenize
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoexec_compiler.identity import canonical, digest, identities, normalised

ROOT = Path(__file__).parents[1]
GOLDEN = [
    ({}, b"{}"),
    ({"b": 1, "a": True}, b'{"a":true,"b":1}'),
    ({"a": 1.0}, b'{"a":{"f64":"3ff0000000000000"}}'),
    ({"a": -0.0}, b'{"a":{"f64":"8000000000000000"}}'),
    ({"a": 1e-06}, b'{"a":{"f64":"3eb0c6f7a0b5ed8d"}}'),
    ({"a": 2**63}, b'{"a":9223372036854775808}'),
    ({"a": 'quote " backslash \\ newline \n'}, b'{"a":"quote \\" backslash \\\\ newline \\n"}'),
    ({"a": "caf\u00e9 \U0001f600 \u0007"}, '{"a":"caf\u00e9 \U0001f600 \\u0007"}'.encode()),
    ({"a": (1, ("x",))}, b'{"a":[1,["x"]]}'),
]


@pytest.mark.parametrize(("value", "expected"), GOLDEN)
def test_canonical_bytes(value: object, expected: bytes) -> None:
    assert canonical(value) == expected
    assert second(value) == expected


def test_digest_of_a_known_preimage() -> None:
    preimage = b'isoexec semantic 1\n{"model.family":"qwen3"}'
    assert digest("semantic", {"model.family": "qwen3"}) == f"sha256:{hashlib.sha256(preimage).hexdigest()}"
    assert digest("semantic", {}) != digest("deployment", {})


def second(value: object) -> bytes:
    """Canonical bytes again, written out by hand: no json module, another way to order and to escape."""
    if value is True or value is False:
        return b"true" if value else b"false"
    if type(value) is int:
        return b"%d" % value
    if type(value) is float:
        return b'{"f64":"' + b"".join(b"%02x" % byte for byte in struct.pack(">d", value)) + b'"}'
    if type(value) is str:
        out = bytearray(b'"')
        short = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}
        for character in value:
            point = ord(character)
            out += short.get(point) or (b"\\u%04x" % point if point < 32 else character.encode())
        return bytes(out + b'"')
    if isinstance(value, tuple | list):
        return b"[" + b",".join(second(item) for item in value) + b"]"
    assert isinstance(value, dict)
    keys = sorted(value)
    return b"{" + b",".join(second(key) + b":" + second(value[key]) for key in keys) + b"}"


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LEAF = st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUE = st.recursive(LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(VALUE)
def test_both_implementations_agree(value: object) -> None:
    assert canonical(value) == second(value)


@given(LEAF, LEAF)
def test_values_that_differ_in_type_or_bits_differ_in_bytes(a: object, b: object) -> None:
    same = type(a) is type(b) and a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))
    assert (canonical(a) == canonical(b)) == same


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_inf_and_nan_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no canonical form"):
        canonical({"a": [value]})


@pytest.mark.parametrize("value", [None, b"bytes", {1: "a"}, {"a": {1, 2}}, 1j, object()])
def test_unknown_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError):
        canonical(value)


def test_normalised_source_ignores_comments_and_docstrings_only() -> None:
    source = '"""Doc.\n\nMore.\n"""\n# comment\nX = 1  # one\ndef f(a):\n    """Doc."""\n    return f"{a}# {X}"\n'
    assert normalised(source) == 'X = 1\ndef f(a):\n    return f"{a}# {X}"\n'
    for other in ("X = 2", "X = 1.0", "X = '1'"):
        assert normalised(source) != normalised(source.replace("X = 1", other))
    assert normalised("if a:\n    b\nc\n") != normalised("if a:\n    b\n    c\n")
    assert normalised("x = '''a\n\n# b'''\n") == "x = '''a\n\n# b'''\n"
    assert normalised('x = (\n    "a"\n)\ny = \\\n"b"\n"c"  # d\n') == 'x = (\n    "a"\n)\ny = \\\n"b"\n'


def test_normalised_source_has_the_tokens_of_the_source() -> None:
    """Every generated file, through Python's own tokeniser: all tokens but comments and strings that stand alone."""
    texts = [path.read_text() for path in sorted((ROOT / "generated").glob("*/**/*.py"))]
    assert len(texts) > 100
    for text in texts:
        stripped = normalised(text)
        assert essential(stripped) == essential(text)
        assert "#" not in {token.string[:1] for token in tokens(stripped)}


def tokens(text: str) -> list[tokenize.TokenInfo]:
    return [t for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type != tokenize.NL]


def essential(text: str) -> list[str]:
    """The tokens of a source without comments, layout, and statements that are one string."""
    statements: list[list[tokenize.TokenInfo]] = [[]]
    for token in tokens(text):
        if token.type == tokenize.NEWLINE:
            statements.append([])
        elif token.string.strip() and token.type != tokenize.COMMENT:
            statements[-1].append(token)
    kept = (s for s in statements if [token.type for token in s] != [tokenize.STRING])
    return [token.string for statement in kept for token in statement]


def test_each_identity_follows_its_own_facts() -> None:
    base = {
        "targets": "cpu sm90",
        "semantic.model.family": "qwen3",
        "numerical_policy.cpu.claims.x": 1,
        "deployment.cpu.runtimes.engine.version": "1",
        "files.cpu/kernels/a.py": "sha256:1",
        "files.sm90/kernels/a.py": "sha256:2",
        "files.guard.py": "sha256:3",
    }

    def rotated(fact: str) -> set[str]:
        before, after = identities(base), identities({**base, fact: "changed"})
        return {key.removeprefix("identity.") for key in before if before[key] != after[key]}

    everything = {k.removeprefix("identity.") for k in identities(base)}
    assert rotated("semantic.model.family") == everything
    assert rotated("numerical_policy.cpu.claims.x") == {"cpu.numerical_policy", "cpu.deployment"}
    assert rotated("deployment.cpu.runtimes.engine.version") == {"cpu.deployment"}
    assert rotated("files.cpu/kernels/a.py") == {"cpu.deployment"}
    assert rotated("files.guard.py") == {"cpu.deployment", "sm90.deployment"}
