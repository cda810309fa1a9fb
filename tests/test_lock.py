"""The lock's text: canonical, one fact a line, and refused in any other form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isoexec_compiler import lock
from isoexec_compiler.lock import dumps, loads, read

FACTS = {"contract": "x", "semantic.eps": 1e-06, "semantic.on": True, "semantic.width": 64, "targets": "cpu"}
NAME = st.from_regex(r"[a-z][a-z0-9_.]{0,20}", fullmatch=True)
LEAF = st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = LEAF | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def codes(text: str) -> list[str]:
    return [problem.code for problem in loads(text, "x.lock")[1]]


@given(st.dictionaries(NAME, VALUE, max_size=8))
def test_facts_survive_the_trip_with_their_types(facts: dict[str, object]) -> None:
    found, problems = loads(dumps(facts), "x.lock")
    assert not problems
    assert [(k, type(v), v) for k, v in sorted(found.items())] == [(k, type(v), v) for k, v in sorted(facts.items())]


def test_one_fact_a_line_and_every_fact_line_alike() -> None:
    lines = dumps(FACTS).splitlines()
    assert len(lines) == len(FACTS) + 4
    assert all(line.endswith(",") for line in lines[1 : 1 + len(FACTS)])
    assert json.loads("\n".join(lines))["semantic.width"] == 64


def test_cutting_the_text_anywhere_is_noticed() -> None:
    text = dumps(FACTS)
    for end in range(len(text) - 1):
        assert codes(text[:end]) in ([lock.TRUNCATED.id], [lock.NOT_CANONICAL.id]), end


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda t: t.replace('"semantic.width": 64', '"semantic.width":  64'), lock.NOT_CANONICAL),
        (lambda t: t.replace("\n", "\r\n"), lock.NOT_CANONICAL),
        (lambda t: t + "\n", lock.NOT_CANONICAL),
        (lambda t: t.replace('"contract": "x",', '"contract": "x",\n"contract": "x",'), lock.NOT_CANONICAL),
        (lambda t: t.replace('"targets": "cpu"', '"targets": null'), lock.UNREADABLE),
        (lambda t: t.replace('"targets": "cpu"', '"targets": NaN'), lock.UNREADABLE),
        (lambda t: t.replace('"targets": "cpu"', '"targets": 1.5'), lock.UNREADABLE),
        (lambda t: t.replace('"contract"', '<<<<<<< ours\n"contract"'), lock.UNREADABLE),
        (lambda t: "[" * 100_000 + t, lock.UNREADABLE),
        (lambda t: t.replace('lock": 1', 'lock": 2'), lock.UNKNOWN_VERSION),
        (lambda t: t.replace('lock": 1', 'lock": true'), lock.UNKNOWN_VERSION),
        (lambda t: t.replace('"!isoexec_lock": 1,\n', ""), lock.UNKNOWN_VERSION),
    ],
)
def test_other_forms_are_refused_by_name(change, code) -> None:
    assert codes(change(dumps(FACTS))) == [code.id]


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_facts_or_one_diagnostic(data: bytes) -> None:
    facts, problems = read(data, "x.lock")
    assert len(problems) == (0 if facts else 1)


@given(st.data())
def test_any_mutation_of_a_lock_is_noticed(data: st.DataObject) -> None:
    text = bytearray(dumps(FACTS).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at] = data.draw(st.integers(0, 255).filter(lambda byte: byte != text[at]))
    facts, problems = read(bytes(text), "x.lock")
    assert problems or facts != FACTS
