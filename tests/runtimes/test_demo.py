"""The demo, shortened: stock against stock differs, and two steps of learning with weight sync differ nowhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import demo

pytestmark = pytest.mark.runtime


def test_demo(tmp_path: Path) -> None:
    stock, steps = demo.run(tmp_path, 2, lambda doing, done: None)
    assert stock["differ"] > 0.9 * stock["of"]
    assert [step["differ"] for step in steps] == [0, 0, 0]
    assert len({step["reward"] for step in steps}) > 1, "the weights never moved"
    demo.plot(tmp_path / "demo.png", stock, steps)
    report = json.loads((tmp_path / "engine.report.json").read_text())
    done = {(e["obligation"], e["version"]) for e in report["ranks"][0]["entries"]}
    assert report["problems"] == []
    assert {("INSTALL", 0), ("FIRST_FORWARD", 0), ("WEIGHT_SYNC", 2), ("STEP", 2)} <= done
