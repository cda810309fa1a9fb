"""Any input gives a document or problems: no exception, no place outside the text, no control code in a report."""

from __future__ import annotations

import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isoexec_compiler.source import Mapping, Scalar, Span, to_data
from tests.fuzz.fuzz_reader import make
from tests.fuzz.invariants import check_inside, check_read, check_spans
from tests.fuzz.mutate import TOKENS, mapping, mutant, seeds, write

fuzz = settings(deadline=None, max_examples=200)
NAMES = st.sampled_from(["fuzz.yaml", "fuzz.json"])
SEEDS = seeds()
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
DATA = st.dictionaries(
    st.from_regex("[a-z][a-z0-9_]{0,5}", fullmatch=True),
    st.recursive(
        LEAVES | st.text(st.characters(codec="ascii", min_codepoint=32, max_codepoint=126)),
        lambda inner: st.lists(inner, max_size=4),
        max_leaves=12,
    ),
    max_size=5,
)


@fuzz
@given(st.binary(max_size=200), NAMES)
def test_bytes(data: bytes, name: str) -> None:
    check_read(data, name)


@fuzz
@given(st.text(max_size=200), NAMES)
def test_text(text: str, name: str) -> None:
    check_read(text.encode("utf-8", errors="surrogatepass"), name)


@fuzz
@given(st.lists(st.sampled_from(TOKENS), max_size=40), NAMES)
def test_tokens(tokens: list[str], name: str) -> None:
    check_read("".join(tokens).encode(), name)


@fuzz
@given(st.sampled_from(SEEDS), st.integers(0, 2**32), NAMES)
def test_mutants(seed: bytes, choices: int, name: str) -> None:
    check_read(mutant(Random(choices), seed), name)


@fuzz
@given(DATA)
def test_json_is_read_as_python_reads_it(data: dict[str, object]) -> None:
    for name in ("fuzz.json", "fuzz.yaml"):
        document = check_read(json.dumps(data).encode(), name)
        assert document is not None
        assert repr(to_data(document.root)) == repr(data)


@fuzz
@given(st.integers(0, 2**32))
def test_what_is_written_is_read(choices: int) -> None:
    random = Random(choices)
    data = mapping(random) | {"last": 1}
    document = check_read(write(random, data).encode(), "fuzz.yaml")
    assert document is not None
    assert repr(to_data(document.root)) == repr(data)


def test_the_fuzzer_reaches_documents_and_problems() -> None:
    random = Random(0)
    outcomes = [check_read(*make(random, SEEDS)) is not None for _ in range(300)]
    assert 30 < sum(outcomes) < 270


def test_the_invariants_fail_when_broken() -> None:
    outside = Span(file="x", line=1, column=4, end_line=1, end_column=6)
    with pytest.raises(AssertionError):
        check_inside(outside, ["abcd"])
    shifted = Scalar(value="abc", text="abc", span=Span(file="x", line=1, column=2, end_line=1, end_column=5))
    with pytest.raises(AssertionError):
        check_spans(shifted, ["abcd"])
    good = check_read(b"a: 1\nb: 2\n", "x.yaml")
    assert good is not None
    reordered = Mapping(entries=good.root.entries[::-1], span=good.root.span)
    with pytest.raises(AssertionError):
        check_spans(reordered, good.text.split("\n"))
