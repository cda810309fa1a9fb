"""Writing a tree: whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from isoexec_compiler import output

OLD = {"a.py": "old\n", "d/b.py": "old\n", "gone.py": "old\n"}
NEW = {"a.py": "new\n", "d/b.py": "new\n", "d/e/c.py": "new\n"}


def texts(folder: Path) -> dict[str, str]:
    return {path: data.decode() for path, data in output.read(folder).items()}


def test_tree_is_replaced_and_what_was_not_ours_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    output.write(folder, OLD, frozenset())
    (folder / "evidence").mkdir()
    (folder / "evidence/r.json").write_text("{}")
    (folder / "mine.txt").write_text("kept\n")
    output.write(folder, NEW, frozenset(OLD))
    assert texts(folder) == {**NEW, "mine.txt": "kept\n"}
    assert (folder / "evidence/r.json").read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


WRITER = """
import sys
from pathlib import Path
from isoexec_compiler import output
folder, count = Path(sys.argv[1]), 300
while True:
    for word in ("old", "new"):
        output.write(folder, {f"f{i}.py": word for i in range(count)}, frozenset())
        print(word, flush=True)
"""


def test_kill_in_the_middle_of_a_write_leaves_the_old_tree_or_the_new(tmp_path: Path) -> None:
    """Killed at 12 moments while two trees of 300 files replace each other, the tree is always one of the two."""
    folder, seen = tmp_path / "x", set()
    for attempt in range(12):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.013 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        found = texts(folder)
        assert len(found) == 300
        assert len(set(found.values())) == 1
        seen |= set(found.values())
    assert seen <= {"old", "new"}
    output.write(folder, NEW, frozenset(f"f{i}.py" for i in range(300)))
    assert [p.name for p in tmp_path.iterdir()] == ["x"], "what killed writers left behind is removed"


def test_two_writers_leave_one_whole_tree(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    script = (
        "import sys; from pathlib import Path; from isoexec_compiler import output\n"
        "for _ in range(20): output.write(Path(sys.argv[1]), {f'{i}.py': sys.argv[2] for i in range(50)}, frozenset())"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(folder), word]) for word in ("one", "two")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(set(texts(folder).values())) == 1


def test_folder_below_a_file_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(OSError, match=r"exists|directory"):
        output.write(tmp_path / "file/x", NEW, frozenset())
    assert (tmp_path / "file").read_text() == "here"
