"""Compiling is a function of the contract and the templates, and of nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isoexec_compiler import output, source

ROOT = Path(__file__).parent.parent
CONTRACT = ROOT / "contracts/tiny_dense.yaml"


def compile_(contract: Path, out: Path, cwd: Path = ROOT, **environment: str) -> dict[str, bytes]:
    command = [sys.executable, "-m", "isoexec_compiler", "compile", str(contract), "--output", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return output.read(out / "tiny_dense")


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return compile_(CONTRACT, tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "random"},
        {"LC_ALL": "C", "TZ": "Asia/Kolkata"},
        {"LC_ALL": "C.UTF-8", "TZ": "America/St_Johns"},
    ],
    ids=lambda e: " ".join(f"{k}={v}" for k, v in e.items()),
)
def test_environment_changes_no_byte(reference: dict[str, bytes], tmp_path: Path, environment: dict[str, str]) -> None:
    assert compile_(CONTRACT, tmp_path, **environment) == reference


def test_working_folder_changes_no_byte(reference: dict[str, bytes], tmp_path: Path) -> None:
    assert compile_(CONTRACT, tmp_path / "out", cwd=tmp_path) == reference


def test_line_endings_of_the_contract_change_no_byte(reference: dict[str, bytes], tmp_path: Path) -> None:
    contract = tmp_path / "tiny_dense.yaml"
    contract.write_bytes(CONTRACT.read_bytes().replace(b"\n", b"\r\n"))
    assert compile_(contract, tmp_path / "out") == reference


def as_data() -> dict[str, object]:
    contract = source.read(CONTRACT.read_bytes(), CONTRACT.name)[0]
    assert contract is not None
    data = source.to_data(contract.root)
    assert isinstance(data, dict)
    return data


def test_order_of_keys_changes_no_byte(reference: dict[str, bytes], tmp_path: Path) -> None:
    def backwards(value: object) -> object:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return [backwards(item) for item in value] if isinstance(value, list) else value

    contract = tmp_path / "tiny_dense.json"
    contract.write_text(json.dumps(backwards(as_data())))
    assert compile_(contract, tmp_path / "out") == reference


def test_json_contract_gives_the_same_bytes(reference: dict[str, bytes], tmp_path: Path) -> None:
    contract = tmp_path / "tiny_dense.json"
    contract.write_text(json.dumps(as_data()))
    assert compile_(contract, tmp_path / "out") == reference


def test_installed_wheel_gives_the_same_bytes(reference: dict[str, bytes], tmp_path: Path) -> None:
    """From a wheel in an environment of its own, which sees the packages installed here and not this checkout."""
    subprocess.run([sys.executable, "-m", "venv", "--system-site-packages", str(tmp_path / "env")], check=True)
    python = tmp_path / "env/bin/python"
    paths = subprocess.run(
        [sys.executable, "-c", "import site; print(*site.getsitepackages())"],
        capture_output=True,
        text=True,
        check=True,
    )
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", str(ROOT)]
    subprocess.run(install, check=True, capture_output=True)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {"PYTHONPATH": paths.stdout.strip()}
    where = subprocess.run(
        [python, "-c", "import isoexec_compiler.template_files as t; print(t.folder())"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert str(tmp_path) in where.stdout
    command = [python, "-m", "isoexec_compiler", "compile", str(CONTRACT), "--output", str(tmp_path / "out")]
    subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True)
    assert output.read(tmp_path / "out/tiny_dense") == reference
