"""Diagnostics: order, suggestions, and the four forms in which they are shown."""

from __future__ import annotations

import json

import pytest

from isoexec_compiler.codes import Code, all_codes, explain
from isoexec_compiler.diagnostics import Diagnostic, Label, has_errors, sort, suggest
from isoexec_compiler.report import LINE_WIDTH, render_concise, render_github, render_json, render_text
from isoexec_compiler.span import Span

SOURCE = "model:\n  width: 2048\n\n\n  width: 4096\n"


def at(line: int, column: int, length: int = 1, file: str = "a.yaml") -> Span:
    return Span(file=file, line=line, column=column, end_line=line, end_column=column + length)


PROBLEM = Diagnostic(
    code="S015",
    message="key `width` is given twice",
    span=at(5, 3, 5),
    labels=(Label(span=at(2, 3, 5), text="first given here"),),
    note="most readers keep the last",
    help="keep one",
)


def test_sort_is_by_place_then_code() -> None:
    nowhere = Diagnostic(code="U401", message="no file")
    first, second = (Diagnostic(code="S001", message="x", span=at(line, 9)) for line in (2, 10))
    same_place = Diagnostic(code="S002", message="x", span=at(2, 9))
    other_file = Diagnostic(code="S001", message="x", span=at(1, 1, file="b.yaml"))
    expected = (nowhere, first, same_place, second, other_file)
    assert sort([other_file, second, same_place, first, first, nowhere]) == expected
    assert [problem.span for problem in sort(reversed(expected))] == [problem.span for problem in expected]


def test_sort_keeps_equal_problems_at_different_places() -> None:
    pair = [Diagnostic(code="S001", message="x", span=at(line, 1)) for line in (1, 2)]
    assert len(sort(pair)) == 2


def test_warnings_are_no_errors() -> None:
    warning = Diagnostic(code="K200", message="x", severity="warning")
    assert not has_errors([warning])
    assert has_errors([warning, PROBLEM])


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("rms_nrom", "rms_norm"),
        ("RMS-Norm", "rms_norm"),
        ("matmul tree", "matmul_tree"),
        ("xyz", None),
        ("x" * 10_000, None),
    ],
)
def test_suggest(word: str, meant: str | None) -> None:
    candidates = ["matmul", "matmul_tree", "rms_norm", "rotary"]
    assert suggest(word, candidates) == suggest(word, reversed(candidates)) == meant


def test_text() -> None:
    assert render_text([PROBLEM], {"a.yaml": SOURCE}) == (
        "error[S015]: key `width` is given twice\n"
        " --> a.yaml:5:3\n"
        "  |\n"
        "2 |   width: 2048\n"
        "  |   ----- first given here\n"
        "...\n"
        "5 |   width: 4096\n"
        "  |   ^^^^^\n"
        "  |\n"
        "  = note: most readers keep the last\n"
        "  = help: keep one\n"
    )


def test_text_about_two_files() -> None:
    problem = Diagnostic(
        code="L301", message="differs", span=at(10, 1, file="b.yaml"), labels=(Label(span=at(1, 1, 5), text="here"),)
    )
    assert render_text([problem], {"a.yaml": SOURCE}) == (
        "error[L301]: differs\n  --> b.yaml:10:1\n  ::: a.yaml:1:1\n   |\n 1 | model:\n   | ----- here\n   |\n"
    )


def test_text_without_a_place_or_with_one_outside_the_source() -> None:
    assert render_text([Diagnostic(code="U401", message="no file")], {}) == "error[U401]: no file\n"
    outside = Diagnostic(code="S001", message="x", span=at(99, 1))
    assert render_text([outside], {"a.yaml": "one\n"}) == "error[S001]: x\n  --> a.yaml:99:1\n   |\n   |\n"


def test_text_marks_a_range_of_lines_to_the_end_of_its_first() -> None:
    span = Span(file="a.yaml", line=2, column=10, end_line=5, end_column=3)
    assert "  |          ^^^^\n" in render_text([Diagnostic(code="S001", message="x", span=span)], {"a.yaml": SOURCE})


def test_text_marks_what_is_under_wide_combining_and_tab() -> None:
    report = render_text([Diagnostic(code="S001", message="x", span=at(1, 7, 2))], {"a.yaml": "日e\u0301\t😀 本é!"})
    line, carets = report.split("\n")[3:5]
    assert line == "1 | 日e\u0301    😀 本é!"
    assert carets == "  | " + " " * (2 + 1 + 4 + 2 + 1) + "^^^"


def test_long_lines_are_cut_around_the_mark() -> None:
    source = "x" * 500 + "BAD" + "y" * 500
    report = render_text([Diagnostic(code="S001", message="x", span=at(1, 501, 3))], {"a.yaml": source})
    line, carets = report.split("\n")[3:5]
    assert len(line) <= LINE_WIDTH + len("1 | ……")
    assert line[carets.index("^") : carets.rindex("^") + 1] == "BAD"


def test_color_changes_nothing_else() -> None:
    plain, colored = (render_text([PROBLEM], {"a.yaml": SOURCE}, color) for color in (False, True))
    for code in ("1;31", "1;34", "1", "0"):
        colored = colored.replace(f"\x1b[{code}m", "")
    assert colored == plain


HOSTILE = "\x1b]0;owned\x07 \u202eabc\u2066 \r\n::error::\u200b\0\x85\u2028\ud800"


def test_nothing_hostile_reaches_the_terminal() -> None:
    label = Label(span=at(1, 2, file=HOSTILE), text=HOSTILE)
    problem = Diagnostic(
        code="S001", message=HOSTILE, span=at(1, 1, file=HOSTILE), labels=(label,), note=HOSTILE, help=HOSTILE
    )
    for report in (
        render_text([problem], {HOSTILE: HOSTILE}),
        render_concise([problem]),
        render_github([problem]),
        render_json([problem]),
    ):
        assert all(character == "\n" or character.isprintable() for character in report)
        report.encode("utf-8")
    assert render_concise([problem]).count("\n") == render_github([problem]).count("\n") == 1


def test_concise() -> None:
    assert render_concise([PROBLEM]) == "a.yaml:5:3: S015 key `width` is given twice\n"
    assert render_concise([Diagnostic(code="U401", message="no file")]) == "U401 no file\n"


def test_github_escapes_what_its_syntax_uses() -> None:
    span = at(5, 3, file="C:\\a,b.yaml")
    problem = Diagnostic(code="S001", message="100%: a,b", span=span, help="less", severity="warning")
    assert render_github([problem]) == (
        "::warning file=C%3A\\a%2Cb.yaml,line=5,col=3,title=S001::100%25: a,b%0Ahelp: less\n"
    )


def test_json() -> None:
    (problem,) = json.loads(render_json([PROBLEM]))
    assert problem["span"] == {"file": "a.yaml", "line": 5, "column": 3, "end_line": 5, "end_column": 8}
    assert problem["labels"][0]["text"] == "first given here"
    assert (problem["code"], problem["severity"], problem["help"]) == ("S015", "error", "keep one")
    assert render_json([]) == "[]\n"


def test_code_makes_a_problem_and_a_page() -> None:
    code = Code(id="K299", title="too wide", manual="\nA width.\n", severity="warning")
    assert code.at(None, "m", help="h") == Diagnostic(code="K299", message="m", help="h", severity="warning")
    assert explain(code) == "## K299: too wide\n\nA width.\n"


def test_codes_are_found_in_order_and_named_by_area() -> None:
    names = list(all_codes())
    assert names == sorted(names)
    assert "S015" in names
    areas = {"S": "0", "C": "1", "K": "2", "L": "3", "U": "4"}
    assert all(len(name) == 4 and areas[name[0]] == name[1] and name[2:].isdigit() for name in names)
