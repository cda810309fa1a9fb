"""Each case directory gives its report, and each code has a case and a manual page."""

from __future__ import annotations

from pathlib import Path

import pytest

from isoexec_compiler.codes import Code, all_codes, manual
from tests.case_directories import EXPECTED, case_directories, report_of
from tests.update_cases import MANUAL

CASES = case_directories()
CONTRACT_CODES = {name: code for name, code in all_codes().items() if name[0] in "SCK"}
# Every launch parameter of the implementations there are is free of bits; `test_check` plants one that is not.
WITHOUT_A_CASE = {"K207"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_report(case: Path) -> None:
    report = report_of(case)
    code = case.name.partition("_")[0]
    assert f"[{code}]" in report
    assert report == (case / EXPECTED).read_text(encoding="utf-8")


@pytest.mark.parametrize("code", sorted(CONTRACT_CODES.keys() - WITHOUT_A_CASE))
def test_code_has_a_case(code: str) -> None:
    assert any(case.name.startswith(f"{code}_") for case in CASES), f"no directory tests/cases/{code}_*"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_has_a_code(case: Path) -> None:
    assert case.name.partition("_")[0] in all_codes()


@pytest.mark.parametrize("code", CONTRACT_CODES.values(), ids=CONTRACT_CODES)
def test_manual_has_cause_example_and_fix(code: Code) -> None:
    paragraphs = code.manual.strip().split("\n\n")
    cause, *examples, fix = paragraphs
    assert any(example.startswith("    ") for example in examples)
    assert not cause.startswith("    ")
    assert not fix.startswith("    ")


def test_manual_is_up_to_date() -> None:
    assert MANUAL.read_text(encoding="utf-8") == manual(), "run `python -m tests.update_cases`"
