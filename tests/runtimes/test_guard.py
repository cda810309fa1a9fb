"""What the guard, the ledger and the audit refuse; each check is seen to fail."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.runtimes.conftest import CONTRACTS, compile_contract

NAME = "tiny_dense"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    compile_contract(CONTRACTS / f"{NAME}.yaml", folder)
    return folder


@pytest.fixture
def package(generated: Path) -> Iterator[SimpleNamespace]:
    """The package as a framework would have imported it, bound as the trainer."""
    sys.path.insert(0, str(generated))
    names = ("guard", "package", "ledger", "regions", "bound_objects", "audit")
    modules = SimpleNamespace(**{name: importlib.import_module(f"{NAME}.{name}") for name in names})
    modules.regions.bind("trainer", "cpu")
    yield modules
    modules.regions.bind("trainer", "cpu")
    sys.path.remove(str(generated))


def observed(package: SimpleNamespace, **changed: object) -> object:
    facts = {
        "side": "trainer",
        "distribution": "megatron-core",
        "sizes": {"tp": 2, "sp": "on"},
        "dtype": torch.bfloat16,
    }
    return package.guard.Observed(**{**facts, **changed})


def test_clean(package: SimpleNamespace) -> None:
    package.guard.install(observed(package))
    assert package.regions.BOUND.ledger.holds("INSTALL")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"sizes": {"tp": 3}}, "tp is 3, the contract claims 1 2 4"),
        ({"dtype": torch.float16}, "the model runs in torch.float16"),
        ({"distribution": "numpy"}, r"numpy .* is installed, the contract is bound to 0\.19\.2"),
        ({"distribution": "no-such-runtime"}, "no-such-runtime 0.19.2 is due, and is not installed"),
        ({"problems": ("dropout is on",)}, "dropout is on"),
        ({"side": "engine"}, "bound as the trainer already"),
    ],
)
def test_a_foreign_runtime_is_refused(package: SimpleNamespace, changed: dict[str, object], reason: str) -> None:
    with pytest.raises(package.guard.GuardError, match=reason):
        package.guard.install(observed(package, **changed))
    if "side" not in changed:
        assert not package.regions.BOUND.ledger.holds("INSTALL")


@pytest.mark.parametrize(
    "variable", ["TRITON_F32_DEFAULT", "TRITON_INTERPRET", "NVIDIA_TF32_OVERRIDE", "PTXAS_OPTIONS"]
)
def test_an_override_in_the_environment_is_refused(
    package: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    with pytest.raises(package.guard.GuardError, match=f"sets {variable}"):
        package.guard.install(observed(package))
    with pytest.raises(package.guard.GuardError, match=f"sets {variable}"):
        package.guard.step(1)


def test_files_are_compared_with_the_lock(package: SimpleNamespace, tmp_path: Path, generated: Path) -> None:
    root = tmp_path / NAME
    shutil.copytree(generated / NAME, root, ignore=shutil.ignore_patterns("__pycache__"))
    lock = json.loads((root / "isoexec.lock").read_text())
    assert package.guard.file_problems(root, lock) == []
    edited = root / "cpu" / "kernels" / "down.py"
    edited.write_text(edited.read_text() + "\n")
    (root / "cpu" / "kernels" / "act.py").unlink()
    (root / "sitecustomize.py").write_text("")
    assert package.guard.file_problems(root, lock) == [
        "cpu/kernels/act.py is missing",
        "cpu/kernels/down.py is not the file that the lock seals",
        "sitecustomize.py is not in the lock",
    ]


def test_a_function_swapped_in_memory_is_seen(package: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is untouched and its digest right; the function is another."""
    module = importlib.import_module(f"{NAME}.cpu.kernels.down")
    clean = package.bound_objects.module_problems(module)
    monkeypatch.setattr(module, "_leaf", lambda x, weight: x.T @ weight)
    monkeypatch.setattr(module, "LEAVES", 4)
    monkeypatch.setattr(module._Subtree, "forward", staticmethod(lambda ctx, x, w, d: x @ w.T))
    assert clean == []
    assert package.bound_objects.module_problems(module) == [
        f"{NAME}.cpu.kernels.down._leaf is not the one in its file",
        f"{NAME}.cpu.kernels.down._Subtree.forward is not the one in its file",
        f"{NAME}.cpu.kernels.down.LEAVES is not the constant in its file",
    ]


def test_a_function_swapped_in_the_table_is_seen_at_first_forward(package: SimpleNamespace) -> None:
    bound = package.regions.BOUND
    before = package.bound_objects.table_digest()
    bound.table["act", "silu_gate"] = lambda gate_up: gate_up[:, : gate_up.shape[1] // 2]
    assert package.bound_objects.table_digest() != before
    with pytest.raises(package.guard.GuardError, match="act: the bound silu_gate is not the one of"):
        package.guard.first_forward("trainer_score")
    with pytest.raises(package.guard.GuardError, match="act: the bound silu_gate is not the one of"):
        package.guard.step(1)


def test_shadowed_and_hooked_modules_are_seen(package: SimpleNamespace) -> None:
    norm = torch.nn.Identity()
    check = package.bound_objects.instance_problems
    assert check("norm", norm, torch.nn.Identity) == []
    assert check("norm", norm, torch.nn.Linear) == ["norm is a Identity, not the adapter's Linear"]
    norm.forward = lambda x: x  # type: ignore[method-assign]
    norm.register_forward_hook(lambda *_: None)
    assert check("norm", norm, torch.nn.Identity) == [
        "norm.forward is shadowed on the instance",
        "norm carries forward hooks",
    ]


def test_a_region_that_ran_too_seldom_is_named(package: SimpleNamespace) -> None:
    times = package.package.load().multiplicity()
    runs = {(region, "trainer_score"): 3 * n for region, n in times.items()}
    assert package.ledger.uneven(runs, times, "trainer_score") == []
    runs["q_norm", "trainer_score"] -= 1
    assert package.ledger.uneven(runs, times, "trainer_score") == ["trainer_score: q_norm ran 5 times, 6 are due"]
    assert package.ledger.uneven(runs, times, "trainer_fwd") == ["trainer_fwd: 0 embeddings and 0 heads ran"]


def test_what_is_not_recorded_did_not_happen(package: SimpleNamespace) -> None:
    ledger = package.ledger.Ledger()
    due = [("INSTALL", 0), ("WEIGHT_SYNC", 1), ("STEP", 1)]
    ledger.record("INSTALL")
    ledger.record("STEP", 1, ["the table changed"])
    assert package.ledger.missing(ledger, due) == [
        "WEIGHT_SYNC (version 1) is not discharged: it was never recorded",
        "STEP (version 1) is not discharged: the table changed",
    ]
    waived = {"obligation": "WEIGHT_SYNC", "reason": "frozen weights", "expires": "2999-01-01"}
    assert len(package.ledger.missing(ledger, due, [waived])) == 1
    assert len(package.ledger.missing(ledger, due, [{**waived, "expires": "2020-01-01"}])) == 2
    with pytest.raises(ValueError, match="no obligation"):
        ledger.record("INSTALLED")


def test_what_is_due_follows_from_the_contract_and_the_loop(package: SimpleNamespace) -> None:
    bound = package.regions.BOUND
    before, bound.ledger = bound.ledger, package.ledger.Ledger(case="trainer_score")
    try:
        bound.ledger.ran("embed")
        bound.ledger.record("INSTALL")
        bound.ledger.record("WEIGHT_SYNC", 1)
        assert package.guard.outstanding(syncs=2, steps=1) == [
            "FIRST_FORWARD (version 1) is not discharged: it was never recorded",
            "WEIGHT_SYNC (version 2) is not discharged: it was never recorded",
            "STEP (version 1) is not discharged: it was never recorded",
        ]
    finally:
        bound.ledger = before


def test_reports_are_merged_and_written_whole(package: SimpleNamespace, tmp_path: Path) -> None:
    ledgers = [package.ledger.Ledger(case="engine_decode") for _ in range(2)]
    for one in ledgers:
        one.ran("attn")
    reports = [package.ledger.report(one, side="engine", rank=rank) for rank, one in enumerate(ledgers)]
    assert package.ledger.merge(reports, ranks=2)["problems"] == []
    assert package.ledger.merge(reports[:1], ranks=2)["problems"] == ["rank 1 sent no report"]
    ledgers[1].ran("attn")
    reports[1] = package.ledger.report(ledgers[1], side="engine", rank=1)
    assert package.ledger.merge(reports, ranks=2)["problems"] == ["rank 1 ran other regions than rank 0"]
    with pytest.raises(ValueError, match="two reports"):
        package.ledger.merge([reports[0], reports[0]], ranks=2)
    package.ledger.write(tmp_path / "report.json", package.ledger.merge(reports, ranks=2))
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]
    assert len(json.loads((tmp_path / "report.json").read_text())["ranks"]) == 2


def test_the_audit_names_what_ran_outside(package: SimpleNamespace) -> None:
    audit, ops = package.audit, package.regions.ops
    x = torch.randn(3, 64).to(torch.bfloat16)
    audit.FINDINGS.outside.clear()
    audit.FINDINGS.on = True
    try:
        with audit.watching():
            y = ops.rms_norm(x, x[0].clone(), "attn_norm").view(3, 64)[:2]
            torch.cat((y, x)).transpose(0, 1).contiguous()
        assert audit.report() == {}
        with audit.watching():
            torch.nn.functional.silu(y)
            y.float()
        assert [name.split("/")[1] for name in audit.report()] == ["aten._to_copy.default", "aten.silu.default"]
    finally:
        audit.FINDINGS.on = False


def test_traced_and_eager_regions_are_one_function(package: SimpleNamespace) -> None:
    """Under torch.compile a region stays one operator, counted at every run and not once for a trace."""
    ops, ledger = package.regions.ops, package.regions.BOUND.ledger

    def block(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ops.rms_norm(ops.residual_add(x, x, "mlp_residual"), weight, "attn_norm")

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    ledger.case, before = "traced", ledger.runs["attn_norm", "traced"]
    for rows in (3, 5, 8):
        x = torch.randn(rows, 64).to(torch.bfloat16)
        assert torch.equal(compiled(x, x[0].clone()).view(torch.int16), block(x, x[0].clone()).view(torch.int16))
    assert ledger.runs["attn_norm", "traced"] - before == 6
