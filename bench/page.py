"""Makes `bench/README.md` from `bench/results/*.json`: every figure on the page comes from a result file."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTRODUCTION = """# Measurements

Made by `python bench/page.py` from the files in `bench/results/`; do not edit. Times are medians of paired runs in
one process, in milliseconds; the ratio is ours over the peer's; the floor is the bytes or operations that no version
can avoid, at the rates measured on that machine. Predictions, and what came of them, stand in the `notes_*.md` here.
"""


COLUMNS = {
    "ours_ms": "ours",
    "peer": "peer",
    "peer_ms": "peer's",
    "ratio": "ratio",
    "floor_ms": "floor",
    "goal": "goal",
}


def table(path: Path) -> str:
    """One result file as a section: a table of times, or, of laws, a line each."""
    data = json.loads(path.read_text())
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    lines = [f"## {path.stem}", "", f"{data['machine']}; {versions}. `{data['command']}`", ""]
    if "ours_ms" in data["rows"][0]:
        lines += [f"| what | {' | '.join(COLUMNS.values())} |", "| --- | ---: | --- | ---: | ---: | ---: | --- |"]
        for row in data["rows"]:
            cells = (row[key] for key in ("name", *COLUMNS))
            lines.append("| " + " | ".join("" if cell is None else str(cell) for cell in cells) + " |")
    else:
        for row in data["rows"]:
            lines.append(f"* {row['name']}: " + ", ".join(f"{key} {row[key]}" for key in row if key != "name"))
    return "\n".join(lines) + "\n"


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, *(table(path) for path in sorted((HERE / "results").glob("*.json")))])


if __name__ == "__main__":
    (HERE / "README.md").write_text(page())
