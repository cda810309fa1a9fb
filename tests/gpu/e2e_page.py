"""The rows of the page of measurements from the report of `e2e_h200`. usage: python -m tests.gpu.e2e_page DIR NAME

Writes bench/results/NAME.json: counts of differing bits, then times, ours beside the stock frameworks' of the same run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness import RESULTS, Row

COUNTS = "(counts, not times)"
ENGINE, TRAINER = "stock vLLM", "stock Megatron-core, local spec"


def row(name: str, ours: float, peer: str = "", peers: float | None = None, goal: str = "") -> Row:
    found = {"name": name, "ours_ms": ours, "peer": peer, "peer_ms": peers}
    return found | {"ratio": None if not peers else round(ours / peers, 3), "floor_ms": None, "goal": goal}


def rows(report: Mapping[str, Any]) -> Iterator[Row]:
    """What the phases that ran have found."""
    stock = report.get("stock_differ")
    peer = "stock vLLM against stock Megatron-core" if stock is not None else ""
    name = f"log-probabilities that differ, engine against trainer, of {report['bound_of']:,} sampled {COUNTS}"
    yield row(name, report["bound_differ"], peer, stock, "0")
    if "rows_missing" in report:
        name = f"rows of {len(report['rows_missing'])} regions, {report['rows_of']:,} in all, that the trainer"
        yield row(f"{name} does not make {COUNTS}", sum(report["rows_missing"].values()), goal="0")
    for side, stock in (("engine", ENGINE), ("trainer", TRAINER)):
        peers = report.get(f"stock_{side}", {})
        for name, milliseconds in report[f"bound_{side}"].items():
            beside = (stock, round(peers[name], 3)) if name in peers else ("", None)
            yield row(name, round(milliseconds, 3), *beside, "<= 1.05")


def main() -> None:
    report = json.loads((Path(sys.argv[1]) / "report.json").read_text())
    found = {key: report[key] for key in ("machine", "versions", "command")} | {"rows": list(rows(report))}
    (RESULTS / f"{sys.argv[2]}.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
