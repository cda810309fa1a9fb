"""Every kind of drift, planted in a compiled package, is named with its cause."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from isoexec_compiler import drift, lock, pipeline, revisions, template_files
from isoexec_compiler.drift import Drift
from isoexec_compiler.identity import text_digest

CONTRACT = Path(__file__).parent.parent / "contracts/tiny_dense.yaml"
KERNEL = "cpu/kernels/attn_out.py"


def build(change: Callable[[str], str] = str) -> pipeline.Package:
    text = change(CONTRACT.read_text())
    contract, problems = pipeline.load(text.encode(), "tiny_dense.yaml")
    assert contract is not None, problems
    return pipeline.build(contract)


@pytest.fixture(scope="module")
def compiled() -> pipeline.Package:
    return build()


@pytest.fixture
def folder(compiled: pipeline.Package, tmp_path: Path) -> Path:
    pipeline.save(compiled, tmp_path / "tiny_dense")
    return tmp_path / "tiny_dense"


def drifts(package: pipeline.Package, folder: Path) -> tuple[Drift, ...]:
    problems, found = pipeline.verify(package, folder)
    assert not problems
    return found


def codes(found: tuple[Drift, ...]) -> set[str]:
    return {one.code for one in found}


def test_fresh_package_has_no_drift_and_is_not_written_twice(compiled: pipeline.Package, folder: Path) -> None:
    assert drifts(compiled, folder) == ()
    assert pipeline.save(compiled, folder) is False


def test_constant_changed_in_the_contract(folder: Path) -> None:
    changed = build(lambda text: text.replace("leaves: 8, leaf_dtype", "leaves: 4, leaf_dtype"))
    found = drifts(changed, folder)
    assert codes(found) == {drift.CONTRACT_CHANGED.id}
    assert any("constants.leaves  8 -> 4" in one.sentence for one in found)
    assert all(one.subject.startswith(("attn_out / all cases", "down / all cases")) for one in found)
    assert {name for one in found for name in one.rotates} >= {"cpu numerical_policy", "cpu deployment"}


def test_free_launch_parameter_rotates_the_deployment_alone(folder: Path) -> None:
    changed = build(lambda text: text.replace("{rows: 16, num_warps: 4}", "{rows: 4, num_warps: 4}"))
    found = drifts(changed, folder)
    assert codes(found) == {drift.CONTRACT_CHANGED.id}
    assert {name for one in found for name in one.rotates} == {"sm90 deployment"}


def test_model_figure_changed(folder: Path) -> None:
    changed = build(lambda text: text.replace("1e-06", "1e-05"))
    found = drifts(changed, folder)
    assert any("model.config.rms_norm_eps" in one.subject and "1e-06 -> 1e-05" in one.detail for one in found)
    assert any("semantic" in one.rotates for one in found)


def test_hand_edit(compiled: pipeline.Package, folder: Path) -> None:
    path = folder / KERNEL
    path.write_text(path.read_text() + "\n# looks harmless\n")
    (found,) = drifts(compiled, folder)
    assert (found.code, found.subject) == (drift.EDITED.id, KERNEL)


def test_deleted_file(compiled: pipeline.Package, folder: Path) -> None:
    (folder / KERNEL).unlink()
    (found,) = drifts(compiled, folder)
    assert (found.code, found.subject) == (drift.MISSING.id, KERNEL)


def test_orphan(compiled: pipeline.Package, folder: Path) -> None:
    (folder / "cpu/kernels/extra.py").write_text("x = 1\n")
    (found,) = drifts(compiled, folder)
    assert (found.code, found.subject) == (drift.ORPHAN.id, "cpu/kernels/extra.py")


def test_swapped_files(compiled: pipeline.Package, folder: Path) -> None:
    other = folder / "cpu/kernels/down.py"
    first, second = (folder / KERNEL).read_bytes(), other.read_bytes()
    assert first != second
    (folder / KERNEL).write_bytes(second)
    other.write_bytes(first)
    found = drifts(compiled, folder)
    assert codes(found) == {drift.SWAPPED.id}
    assert {one.subject for one in found} == {KERNEL, "cpu/kernels/down.py"}


def test_line_endings_only(compiled: pipeline.Package, folder: Path) -> None:
    path = folder / KERNEL
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (found,) = drifts(compiled, folder)
    assert (found.code, found.detail) == (drift.LINE_ENDINGS.id, "line endings only")


def test_missing_lock(compiled: pipeline.Package, folder: Path) -> None:
    (folder / lock.NAME).unlink()
    (found,) = drifts(compiled, folder)
    assert found.code == drift.NO_LOCK.id


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda text: text[: len(text) // 2], lock.TRUNCATED),
        (lambda text: text.replace(": 64,", ":  64,"), lock.NOT_CANONICAL),
        (lambda text: text.replace('lock": 1', 'lock": 99'), lock.UNKNOWN_VERSION),
    ],
)
def test_damaged_lock(compiled: pipeline.Package, folder: Path, change, code) -> None:
    path = folder / lock.NAME
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    problems, found = pipeline.verify(compiled, folder)
    assert [problem.code for problem in problems] == [code.id]
    assert not found


def test_edited_lock_contradicts_itself(compiled: pipeline.Package, folder: Path) -> None:
    path = folder / lock.NAME
    path.write_text(path.read_text().replace('attn_out.constants.leaves": 8', 'attn_out.constants.leaves": 2'))
    found = drifts(compiled, folder)
    assert drift.LOCK_EDITED.id in codes(found)
    assert any("constants.leaves  2 -> 8" in one.sentence for one in found)


def test_template_changed(compiled: pipeline.Package, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = template_files.load()
    path = "kernels/matmul_tree/torch.py.jinja"
    texts = {**templates.texts, path: templates.texts[path] + "\nEXTRA = 1\n"}
    monkeypatch.setattr(template_files, "load", lambda: replace(templates, texts=texts))
    found = drifts(build(), folder)
    assert codes(found) == {drift.TEMPLATE_CHANGED.id}
    assert {one.detail for one in found} == {"template of matmul_tree changed"}
    assert {one.subject.split(" ")[0] for one in found} == {"attn_out", "down"}


def test_support_module_changed(compiled: pipeline.Package, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    templates = template_files.load()
    texts = {**templates.texts, "support/elementary.py": templates.texts["support/elementary.py"] + "\nEXTRA = 1\n"}
    monkeypatch.setattr(template_files, "load", lambda: replace(templates, texts=texts))
    found = drifts(build(), folder)
    assert codes(found) == {drift.TEMPLATE_CHANGED.id}
    assert "numerical_policy.cpu.support.elementary.source" in {one.subject for one in found}


def test_comment_in_a_template_rotates_the_deployment_alone(
    compiled: pipeline.Package, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = template_files.load()
    path = "kernels/matmul_tree/torch.py.jinja"
    texts = {**templates.texts, path: templates.texts[path] + "# a remark\n"}
    monkeypatch.setattr(template_files, "load", lambda: replace(templates, texts=texts))
    after = build()
    changed = {key for key, _, _ in drift.changes(compiled.facts, after.facts) if key.startswith("identity.")}
    assert changed == {"identity.cpu.deployment"}


def test_diff_of_two_locks_names_facts_and_identities(compiled: pipeline.Package, tmp_path: Path) -> None:
    after = build(lambda text: text.replace("leaves: 8, leaf_dtype", "leaves: 4, leaf_dtype"))
    for name, package in (("a", compiled), ("b", after)):
        (tmp_path / name).write_text(package.tree[lock.NAME])
    facts = [revisions.lock_facts(str(tmp_path / name))[0] for name in ("a", "b")]
    found = revisions.diff(*facts)
    assert any("attn_out / all cases (cpu)  constants.leaves  8 -> 4" in one.sentence for one in found)
    assert revisions.diff(facts[0], facts[0]) == ()


def test_file_that_is_no_longer_generated_goes_and_leaves_no_orphan(compiled: pipeline.Package, tmp_path: Path) -> None:
    extra, text = "sm90/kernels/extra.py", "x = 1\n"
    facts = {**compiled.facts, f"files.{extra}": text_digest(text)}
    before = replace(compiled, facts=facts, tree={**compiled.tree, extra: text, lock.NAME: lock.dumps(facts)})
    assert pipeline.save(before, tmp_path / "tiny_dense") is True
    assert (tmp_path / "tiny_dense" / extra).is_file()
    assert pipeline.save(compiled, tmp_path / "tiny_dense") is True
    assert drifts(compiled, tmp_path / "tiny_dense") == ()
    assert not (tmp_path / "tiny_dense" / extra).exists()


def test_evidence_is_left_alone(compiled: pipeline.Package, folder: Path) -> None:
    (folder / "evidence").mkdir()
    (folder / "evidence/one.json").write_text("{}")
    assert drifts(compiled, folder) == ()
    shutil.rmtree(folder / "cpu")
    assert pipeline.save(compiled, folder) is True
    assert (folder / "evidence/one.json").read_text() == "{}"
