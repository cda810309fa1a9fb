"""The reader: what a text means, where its parts are, and that it refuses quickly what it refuses."""

from __future__ import annotations

import json
import time

import pytest

from isoexec_compiler.source import Document, Mapping, Scalar, Sequence, Span, read, surprise, to_data
from isoexec_compiler.source.tree import MAX_DEPTH, MAX_NODES

CONTRACT = """\
# A contract.
isoexec: 1
model:
  family: qwen3   # dense
  layers: {pattern: [gdn, attention], repeat: 10}
sizes:
  - 1
  - 2
note: >
  two
  lines
"""


def parse(text: str, name: str = "contract.yaml") -> Document:
    document, problems = read(text.encode(), name)
    assert problems == ()
    assert document is not None
    return document


def value_of(text: str) -> object:
    return to_data(parse(f"value: {text}\n").root)["value"]  # type: ignore[index, call-overload]


def codes(text: str | bytes, name: str = "contract.yaml") -> list[str]:
    return [problem.code for problem in read(text.encode() if isinstance(text, str) else text, name)[1]]


def place(span: Span) -> tuple[int, int, int, int]:
    return span.line, span.column, span.end_line, span.end_column


def test_data() -> None:
    assert to_data(parse(CONTRACT).root) == {
        "isoexec": 1,
        "model": {"family": "qwen3", "layers": {"pattern": ["gdn", "attention"], "repeat": 10}},
        "sizes": [1, 2],
        "note": "two lines\n",
    }


def test_places() -> None:
    root = parse(CONTRACT).root
    model = root.entry("model")
    assert model is not None
    assert isinstance(model.value, Mapping)
    assert place(model.key_span) == (3, 1, 3, 6)
    assert place(model.value.span) == (4, 3, 5, 50)
    family, layers = model.value.get("family"), model.value.get("layers")
    assert family is not None
    assert place(family.span) == (4, 11, 4, 16)
    assert layers is not None
    assert place(layers.span) == (5, 11, 5, 50)
    sizes = root.get("sizes")
    assert isinstance(sizes, Sequence)
    assert place(sizes.span) == (7, 3, 8, 6)
    assert root.get("absent") is None
    assert root.keys() == ("isoexec", "model", "sizes", "note")


def test_places_after_wide_characters_count_code_points() -> None:
    note = parse('{note: "日本😀", last: 1}\n').root.entry("last")
    assert note is not None
    assert place(note.key_span) == (1, 15, 1, 19)


@pytest.mark.parametrize("text", ["? i", "a: |", "a: >-\n  b", "- &a", "a: 'b", "a:"])
def test_places_stay_inside_a_text_without_a_last_line_feed(text: str) -> None:
    document, problems = read(text.encode(), "contract.yaml")
    spans = [document.root.span] if document else [problem.span for problem in problems if problem.span]
    assert spans
    assert all(span.end_line <= text.count("\n") + 1 for span in spans)


def test_places_are_not_part_of_equality() -> None:
    assert parse("a: {b: 1}\n").root == parse("# moved\na:\n    b:   1\n").root
    assert parse("a: 1\n").root != parse("a: 2\n").root


def test_line_endings_change_nothing() -> None:
    unix, windows = parse(CONTRACT), parse(CONTRACT.replace("\n", "\r\n"))
    assert repr(unix) == repr(windows)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6), ("1E+5", 1e5), ("1.0e-5", 1e-5), (".5", 0.5), ("1.", 1.0), ("-0.0", -0.0), ("1.10", 1.1),
        ("010", 10), ("0o17", 15), ("0x1F", 31), ("+1", 1), ("-0", 0), ("9223372036854775807", 2**63 - 1),
        ("true", True), ("False", False), ("null", None), ("~", None), ("", None), ('""', ""),
        ("no", "no"), ("NO", "NO"), ("off", "off"), ("y", "y"), ("tRUE", "tRUE"), ('"true"', "true"), ("'1'", "1"),
        ("12_000", "12_000"), ("1:30", "1:30"), ("2020-01-01", "2020-01-01"), ("0b11", "0b11"), ("nan", "nan"),
        ("1e", "1e"), ("0o8", "0o8"), ("-0x1", "-0x1"), ("1.1.1", "1.1.1"), ("=", "="),
    ],
)  # fmt: skip
def test_core_schema(text: str, value: object) -> None:
    assert repr(value_of(text)) == repr(value)


def test_scalar_keeps_its_text() -> None:
    version = parse("version: 1.10\n").root.get("version")
    assert isinstance(version, Scalar)
    assert version.text == "1.10"
    assert version.value == 1.1


def test_values_of_different_types_are_different() -> None:
    nodes = [parse(f"a: {text}\n").root for text in ("1", "1.0", "true", "'1 '")]
    assert all(left != right for left in nodes for right in nodes if left is not right)


@pytest.mark.parametrize(
    ("text", "word"),
    [("no", "`false`"), ("ON", "`true`"), ("12_000", "`_`"), ("1:30", "base-60"), ("0b1", "binary"), ("NaN", "finite")],
)
def test_surprise(text: str, word: str) -> None:
    assert word in (surprise(text) or "")


@pytest.mark.parametrize("text", ["qwen3", "0.26.0", "2026-01-01", "a_b", "north", "sm90"])
def test_no_surprise(text: str) -> None:
    assert surprise(text) is None


def test_json_is_read_alike() -> None:
    data = to_data(parse(CONTRACT).root)
    for indent in (None, 2, "\t"):
        document = parse(json.dumps(data, indent=indent), "contract.json")
        assert document.root == parse(CONTRACT).root


def test_json_as_json_has_it() -> None:
    text = '{"a" \n : "\\ud83d\\ude00 \\u00e9 \\/ \\n", "b":[ ],"c":{},"d":-0,"e":1E5,"f":1.50,"g":[true,null,"]"]}'
    assert repr(to_data(parse(text, "x.json").root)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "{a: 1}", "{'a': 1}", '{"a": 1,}', '{"a": [1,]}', '{"a": 01}', '{"a": +1}', '{"a": .5}', '{"a": 1.}',
        '{"a": 0x1}', '{"a": True}', '{"a": yes}', '{"a" 1}', '{"a": 1} // c', '# c\n{"a": 1}', '{"a": 1} {}', '{"a":',
        '{"a": "\n"}', '{"a": "\\x41"}', '{"a": "', '{"a": "\\u12"}', '{"a": [}', "{", "nul", '{"a": --1}', '{"a": 1e}',
    ],
)  # fmt: skip
def test_what_is_not_json(text: str) -> None:
    assert "S008" in codes(text, "contract.json")


def test_json_errors_name_the_place() -> None:
    _, (problem,) = read(b'{\n  "a": 1\n  "b": 2\n}', "contract.json")
    assert problem.span is not None
    assert place(problem.span) == (3, 3, 3, 6)
    assert problem.message == 'not valid JSON: expected `,` or `}`, found `"b"`'


def test_problems_are_collected() -> None:
    text = "a: 1\na: &x 2\nb: *x\nC: !!str x\n<<: 3\n4: 5\nd: .inf\ne: 99999999999999999999\nf:\t1\n"
    assert codes(text) == ["S015", "S012", "S012", "S017", "S013", "S014", "S016", "S018", "S019", "S007"]


def test_many_problems_are_cut_with_a_note() -> None:
    _, problems = read(b"A: 1\n" * 5000, "contract.yaml")
    assert len(problems) == 100
    assert problems[-1].note == "more problems follow that are not shown"
    assert all(problem.note is None for problem in problems[:-1])


def test_limits_are_what_they_say() -> None:
    assert codes("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)) == []
    assert codes("a: " + "[" * MAX_DEPTH + "]" * MAX_DEPTH) == ["S020"]
    others = 3
    assert codes("a: [" + "1," * (MAX_NODES - others) + "]") == []
    assert codes("a: [" + "1," * (MAX_NODES - others + 1) + "]") == ["S021"]
    assert codes("a: " + "x" * ((1 << 20) - 3)) == []
    assert codes("a: " + "x" * ((1 << 20) - 2)) == ["S001"]


ALIAS_BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)


MILLION = 1_000_000
LARGE = [
    *("a: 1\n" * 2 * MILLION, "[" * 100_000, "{a: " * 100_000, '{"a":' * 100_000, "- " * 100_000, "? " * 100_000),
    *(
        "\n".join(" " * depth + "a:" for depth in range(1400)),
        ALIAS_BOMB,
        "a: &a [*a]",
        "&a " * 300_000,
        "*a " * 300_000,
    ),
    *("[" + "1," * 500_000, "{" + "a," * 500_000, "k: 1\n" * 200_000, "".join(f"k{i}: 1\n" for i in range(90_000))),
    *("---\n" * 250_000, "a:" * 500_000, "\n" * MILLION, "#" * MILLION, "!" * MILLION, "%" * MILLION, "'" * MILLION),
    *('"' * MILLION, "a: '" + "\\" * MILLION, 'a: "' + "\\x41" * 250_000, "a: |\n" + " \n" * 500_000),
    *("a: 1." + "1" * MILLION, "a: " + "9" * MILLION, "\0a" * 500_000, "\ta" * 500_000),
    *("e\u0301\n" * 250_000, "\u00a0a" * 300_000),
]


@pytest.mark.parametrize("text", LARGE, ids=lambda text: f"{text[:6]!r}-{len(text)}")
@pytest.mark.parametrize("name", ["bomb.yaml", "bomb.json"])
def test_large_input_is_answered_quickly(text: str, name: str) -> None:
    generous_seconds = 3.0
    started = time.process_time()
    document, problems = read(text.encode(), name)
    assert time.process_time() - started < generous_seconds
    assert (document is None) == bool(problems)
    assert len(problems) <= 100
    assert all(len(problem.message) < 200 for problem in problems)
