"""`python -m tests.update_cases`: rewrite what is generated from the front end, for review in the diff."""

from __future__ import annotations

from pathlib import Path

from isoexec_compiler.codes import manual
from tests.case_directories import EXPECTED, case_directories, report_of

MANUAL = Path(__file__).parent.parent / "docs" / "diagnostics.md"


def main() -> None:
    """Write each case's expected report, and the manual of all codes."""
    for case in case_directories():
        (case / EXPECTED).write_text(report_of(case), encoding="utf-8", newline="\n")
    MANUAL.write_text(manual(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
