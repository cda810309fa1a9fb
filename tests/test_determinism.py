"""Compiling is a function of the contract and the templates, and of nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isoexec_compiler import output

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


def test_order_of_keys_changes_no_byte(reference: dict[str, bytes], tmp_path: Path) -> None:
    import yaml

    def backwards(value: object) -> object:
        if isinstance(value, dict):
            return {key: backwards(value[key]) for key in reversed(value)}
        return [backwards(item) for item in value] if isinstance(value, list) else value

    class Reader(yaml.SafeLoader):
        """Plain words as strings, as in YAML 1.2."""

    Reader.yaml_implicit_resolvers = {
        key: [(tag, regexp) for tag, regexp in resolvers if "bool" not in tag]
        for key, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    data = yaml.load(CONTRACT.read_text(), Reader)  # noqa: S506
    contract = tmp_path / "tiny_dense.yaml"
    contract.write_text(yaml.safe_dump(backwards(data), sort_keys=False))
    assert compile_(contract, tmp_path / "out") == reference


def test_json_contract_gives_the_same_bytes(reference: dict[str, bytes], tmp_path: Path) -> None:
    emitted = subprocess.run(
        [sys.executable, "-m", "isoexec_compiler", "compile", str(CONTRACT), "--emit", "document"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    contract = tmp_path / "tiny_dense.json"
    contract.write_text(emitted.stdout)
    assert compile_(contract, tmp_path / "out") == reference
