"""The program as its user meets it: exit codes, streams, formats, and nothing written when something is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isoexec_compiler.codes import all_codes

ROOT = Path(__file__).parent.parent
CONTRACT = ROOT / "contracts/tiny_dense.yaml"


def isoexec(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "GITHUB_ACTIONS"} | {"PYTHONPATH": str(ROOT)} | environment
    command = [sys.executable, "-m", "isoexec_compiler", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    done = isoexec("compile", str(CONTRACT), "-o", str(folder))
    assert done.returncode == 0, done.stderr
    assert "written to" in done.stdout
    assert done.stdout.count("sha256:") == 5
    return folder


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(CONTRACT.read_text().replace("op: rotary", "op: rotry"))
    return path


def test_second_compile_prints_unchanged(out: Path) -> None:
    done = isoexec("compile", str(CONTRACT), "-o", str(out))
    assert done.returncode == 0
    assert done.stdout.startswith("tiny_dense: unchanged\n")


def test_verify_passes_then_names_what_was_planted(out: Path) -> None:
    assert isoexec("verify", str(CONTRACT), "-o", str(out)).returncode == 0
    path = out / "tiny_dense/cpu/kernels/act.py"
    before = path.read_bytes()
    path.write_bytes(before + b"# edited\n")
    try:
        done = isoexec("verify", str(CONTRACT), "-o", str(out))
        assert done.returncode == 1
        assert "L312  cpu/kernels/act.py  edited by hand" in done.stdout
        as_json = json.loads(isoexec("verify", str(CONTRACT), "-o", str(out), "--format", "json").stdout)
        assert [drift["code"] for drift in as_json] == ["L312"]
        for arguments, env in ((("--format", "github"), {}), ((), {"GITHUB_ACTIONS": "true"})):
            annotated = isoexec("verify", str(CONTRACT), "-o", str(out), *arguments, **env).stdout
            assert annotated.startswith("::error file=")
            assert "title=L312" in annotated
    finally:
        path.write_bytes(before)


def test_bad_contract_exits_1_with_one_diagnostic_and_writes_nothing(broken: Path, tmp_path: Path) -> None:
    done = isoexec("compile", str(broken), "-o", str(tmp_path / "generated"))
    assert done.returncode == 1
    assert "did you mean `rotary`?" in done.stderr
    assert f"{broken}:" in done.stderr
    assert not (tmp_path / "generated").exists()
    assert "Traceback" not in done.stderr


def test_formats_of_diagnostics(broken: Path, tmp_path: Path) -> None:
    def run(format: str) -> subprocess.CompletedProcess[str]:
        return isoexec("compile", str(broken), "-o", str(tmp_path / "generated"), "--format", format)

    assert run("concise").stderr.startswith(f"{broken}:")
    assert json.loads(run("json").stdout)[0]["code"] in all_codes()
    assert run("github").stdout.startswith("::error file=")


@pytest.mark.parametrize("level", ["document", "contract", "plan", "files"])
def test_emit_prints_a_level_and_writes_nothing(level: str, tmp_path: Path) -> None:
    done = isoexec("compile", str(CONTRACT), "-o", str(tmp_path / "generated"), "--emit", level)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert not (tmp_path / "generated").exists()


def test_missing_file_and_unwritable_output_are_named(tmp_path: Path) -> None:
    missing = isoexec("compile", str(tmp_path / "none.yaml"))
    assert (missing.returncode, "U401" in missing.stderr) == (1, True)
    (tmp_path / "file").write_text("")
    blocked = isoexec("compile", str(CONTRACT), "-o", str(tmp_path / "file"))
    assert (blocked.returncode, "U401" in blocked.stderr) == (1, True)
    assert "Traceback" not in missing.stderr + blocked.stderr


def test_explain_prints_the_manual_of_every_code_and_suggests() -> None:
    done = isoexec("explain", "l312")
    assert done.returncode == 0
    assert done.stdout.startswith("L312: generated file edited by hand")
    unknown = isoexec("explain", "L3123")
    assert (unknown.returncode, "did you mean" in unknown.stderr) == (2, True)


def test_wrong_usage_exits_2() -> None:
    assert isoexec("compile").returncode == 2
    assert isoexec("compile", str(CONTRACT), "--emit", "nothing").returncode == 2


def test_diff_of_git_revisions_and_of_an_option_in_disguise(out: Path) -> None:
    lock = str(out / "tiny_dense/isoexec.lock")
    same = isoexec("diff", lock, lock)
    assert (same.returncode, same.stdout) == (0, "no difference\n")
    for name in ("--output=x:y", "nowhere:isoexec.lock", "none"):
        done = isoexec("diff", "--", name, lock)
        assert (done.returncode, "U401" in done.stderr) == (1, True)


def test_no_color_and_no_terminal_codes(broken: Path) -> None:
    assert "\x1b" not in isoexec("compile", str(broken)).stderr
