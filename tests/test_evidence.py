"""Evidence counts for what it was made of, and for nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isoexec_compiler import claims, evidence
from isoexec_compiler.cli import app
from isoexec_compiler.drift import Drift
from isoexec_compiler.evidence import Record
from isoexec_compiler.pipeline import Package
from tests.proofs import CONTRACT, compiled, cpu_only

ROOT = Path(__file__).parent.parent
RUN = CliRunner()


@pytest.fixture(scope="module")
def proved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contract, and its package proved on the cpu target."""
    folder = tmp_path_factory.mktemp("proved")
    (folder / "tiny.yaml").write_text(cpu_only(CONTRACT.read_text()))
    compiled((folder / "tiny.yaml").read_text(), folder / "generated")
    done = isoexec(folder, "prove", "--target", "cpu", "--seconds", "300", "--quick")
    assert done.exit_code == 0, done.output
    assert " 0 differing" in done.stdout
    assert "[1/" in done.stderr
    return folder


@pytest.fixture
def copy(proved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(proved, tmp_path / "copy"))


def isoexec(folder: Path, command: str, *options: str):
    return RUN.invoke(app, [command, str(folder / "tiny.yaml"), "-o", str(folder / "generated"), *options])


def required(folder: Path):
    return isoexec(folder, "verify", "--require-evidence", "--format", "text")


def package(folder: Path) -> tuple[Package, Path]:
    return compiled((folder / "tiny.yaml").read_text(), folder / "generated")


def shortfalls(folder: Path) -> tuple[Drift, ...]:
    found, place = package(folder)
    return claims.shortfalls(found.plan, found.facts, found.tree, place)


def records(folder: Path) -> dict[Path, Record]:
    return {path: record for path, record in evidence.read(folder / "generated/tiny_dense") if record}


def rewritten(path: Path, record: Record) -> None:
    """The record under its proper name, in place of the old one."""
    path.unlink()
    text = evidence.text(record)
    (path.parent / f"{hashlib.sha256(text.encode()).hexdigest()}.json").write_text(text)


def test_every_claim_of_a_proved_package_has_evidence(proved: Path) -> None:
    done = required(proved)
    assert done.exit_code == 0, done.output
    assert "verified" in done.stdout
    assert all(record.outcome in ("bitwise", "within bound") for record in records(proved).values())
    assert all(record.differing == 0 for record in records(proved).values())


def test_a_package_without_evidence_verifies_and_not_where_evidence_is_required(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(CONTRACT.read_text())
    package(tmp_path)
    done = isoexec(tmp_path, "verify")
    assert done.exit_code == 0
    assert "verified" in done.stdout
    assert "no evidence; --require-evidence lists what its claims need" in done.stderr
    done = required(tmp_path)
    assert done.exit_code == 1
    for claim in ("every kernel", "topology tp 1 2 4", "topology sp", "state kv_cache", "tolerance engine_decode"):
        for target in ("cpu", "sm90"):
            assert re.search(rf"L330  {claim}.*\({target}\)  \d+ of \d+ laws: missing", done.stdout), claim


def test_evidence_outlives_a_compile(copy: Path) -> None:
    before = {path.name for path in records(copy)}
    path = copy / "tiny.yaml"
    path.write_text(path.read_text().replace("eps: 1e-06", "eps: 2e-06"))
    assert isoexec(copy, "compile").exit_code == 0
    assert {path.name for path in records(copy)} == before


def test_only_what_the_evidence_does_not_show_is_proved_again(copy: Path) -> None:
    before = records(copy)
    lost = sorted(path for path, record in before.items() if record.law == "repeats")[:2]
    for path in lost:
        path.unlink()
    done = isoexec(copy, "prove", "--target", "cpu", "--missing", "--quick")
    assert done.exit_code == 0, done.output
    assert "/2] " in done.stderr
    assert {(record.module, record.law) for record in records(copy).values()} == {
        (record.module, record.law) for record in before.values()
    }
    again = isoexec(copy, "prove", "--target", "cpu", "--missing", "--quick")
    assert again.exit_code == 0
    assert "bitwise" not in again.output


def test_another_kernel_text_makes_its_own_evidence_stale_and_no_other(copy: Path) -> None:
    path = copy / "tiny.yaml"
    before = "{leaves: 8, leaf_dtype: fp32, block_k: 16}"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, before.replace("8", "4")))
    found = shortfalls(copy)
    assert {drift.code for drift in found} == {claims.STALE.id}
    assert all("another kernel text" in drift.detail for drift in found)
    assert set(re.findall(r"[(, ](\w+)/", " ".join(drift.detail for drift in found))) == {"attn_out", "down"}
    assert required(copy).exit_code == 1


def test_a_kernel_digest_depends_on_every_support_module_it_reaches(proved: Path) -> None:
    found, _ = package(proved)
    kernel = next(k for k in found.plan.kernels if k.region == "attn_norm")
    before = evidence.kernel_digest(kernel, found.facts, found.tree)
    moved = set()
    for fact in found.facts:
        if fact.startswith("numerical_policy.cpu.support."):
            changed = {**found.facts, fact: "sha256:0"}
            if evidence.kernel_digest(kernel, changed, found.tree) != before:
                moved.add(fact.removeprefix("numerical_policy.cpu.support.").removesuffix(".source"))
    assert moved == {"elementary", "launcher", "trees"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"arch": "cpu pdp11"}, "another architecture: cpu pdp11"),
        ({"toolchain": {"torch": "1.0"}}, "another toolchain: torch 1.0"),
        ({"kernel": "sha256:00"}, "another kernel text"),
    ],
)
def test_evidence_of_another_machine_does_not_count(copy: Path, change: dict[str, object], reason: str) -> None:
    for path, record in records(copy).items():
        if (record.module, record.law) == ("act", "repeats"):
            rewritten(path, replace(record, **change))
    found = shortfalls(copy)
    assert {drift.code for drift in found} == {claims.STALE.id}
    assert all(reason in drift.detail and "act/repeats" in drift.detail for drift in found)


def test_a_record_that_differs_refutes(copy: Path) -> None:
    path, record = next(item for item in records(copy).items() if item[1].law == "rows_alone")
    rewritten(path, replace(record, differing=1, outcome="differs"))
    assert {drift.code for drift in shortfalls(copy)} == {claims.REFUTED.id}
    assert required(copy).exit_code == 1


def test_altered_evidence_is_named(copy: Path) -> None:
    edited, cut, renamed = list(records(copy))[:3]
    edited.write_text(edited.read_text().replace('"compared": ', '"compared": 9'))
    cut.write_text(cut.read_text()[:100])
    renamed.rename(renamed.with_name("0" * 64 + ".json"))
    named = {drift.subject for drift in shortfalls(copy) if drift.code == claims.ALTERED.id}
    assert named == {f"evidence/cpu/{name}" for name in (edited.name, cut.name, "0" * 64 + ".json")}
    assert required(copy).exit_code == 1


@pytest.mark.parametrize(
    "change", [{"differing": 3}, {"compared": 0}, {"control_differing": 0}, {"hazards": {"large": 0}}]
)
def test_bitwise_is_never_believed_against_the_counts(copy: Path, change: dict[str, object]) -> None:
    """Even under a proper name: a label that the record's own numbers do not imply is an alteration."""
    path, record = next(item for item in records(copy).items() if item[1].outcome == "bitwise")
    rewritten(path, replace(record, **change))
    assert claims.ALTERED.id in {drift.code for drift in shortfalls(copy)}


def test_records_of_one_law_replace_each_other(copy: Path) -> None:
    folder = copy / "generated/tiny_dense"
    count = len(records(copy))
    path, record = next(iter(records(copy).items()))
    fresh = evidence.write(folder, replace(record, seed=99))
    assert len(records(copy)) == count
    assert fresh.exists()
    assert not path.exists()
    assert json.loads(fresh.read_text())["seed"] == 99


def test_a_package_that_drifted_is_not_proved(copy: Path) -> None:
    path = copy / "generated/tiny_dense/cpu/kernels/act.py"
    path.write_text(path.read_text() + "# edited\n")
    done = isoexec(copy, "prove", "--target", "cpu")
    assert done.exit_code == 1
    assert "edited by hand" in done.stdout


def test_a_target_that_cannot_run_here_is_a_usage_error(copy: Path) -> None:
    assert isoexec(copy, "prove", "--target", "sm90").exit_code == 2
    assert isoexec(copy, "reveal", "--target", "sm70").exit_code == 2


def test_support_says_bitwise_only_for_all_of_a_claim(copy: Path) -> None:
    rows = [line for line in isoexec(copy, "support").stdout.splitlines() if line.startswith("| tiny_dense")]
    assert rows
    assert all("| 0 | bitwise | " in row for row in rows)
    for path, record in records(copy).items():
        if record.law == "attention_resume":
            path.unlink()
    rows = isoexec(copy, "support").stdout.splitlines()
    states = {row.split(" | ")[2]: row.split(" | ")[6] for row in rows if row.startswith("| tiny_dense")}
    assert states["state kv_cache"] == "no evidence"
    assert states["tolerance engine_decode trainer_score"] == "in part"
    assert states["topology tp 1 2 4"] == "bitwise"


def test_the_support_page_is_what_the_committed_evidence_shows() -> None:
    contracts = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "contracts").glob("*.yaml"))
    done = RUN.invoke(app, ["support", *(str(ROOT / path) for path in contracts), "-o", str(ROOT / "generated")])
    assert done.stdout == (ROOT / "docs/support.md").read_text(), "`make golden` writes it"
