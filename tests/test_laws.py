"""The laws that `prove` examines hold on right kernels and are seen to fail on wrong ones."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from isoexec_compiler.draw import Draw
from isoexec_compiler.law import BITWISE, BLIND, DIFFERS, Finding, laws
from isoexec_compiler.laws import free_launch
from isoexec_compiler.pipeline import Package
from isoexec_compiler.registry import implementations, ops
from isoexec_compiler.subject import Subject, imported
from tests.proofs import CONTRACT, compiled, faulty, kernel, subject

Place = tuple[Package, Path]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return compiled(CONTRACT.read_text(), tmp_path_factory.mktemp("generated"))


def examine(law: str, place: Place, module: str, fault: Callable[[ModuleType], ModuleType] | None = None) -> Finding:
    about = subject(*place, module)
    if fault:
        about = subject(*place, module, modules={"cpu": fault(about.module)})
    return laws()[law].examine(about)


def test_every_op_has_a_trial() -> None:
    for op in ops():
        assert callable(importlib.import_module(f"isoexec_compiler.trials.{op}").calls)


@pytest.mark.parametrize(
    ("law", "module"),
    [
        ("rows_alone", "down"),
        ("rows_alone", "logprobs"),
        ("repeats", "act"),
        ("tensor_parallel", "down"),
        ("tensor_parallel", "embed"),
        ("tensor_parallel", "logprobs"),
        ("attention_resume", "attn"),
        ("declared_tree", "down"),
    ],
)
def test_right_kernels_keep_the_law(tiny: Place, law: str, module: str) -> None:
    found = examine(law, tiny, module)
    assert (found.outcome, found.differing) == (BITWISE, 0)
    assert found.compared > 0
    assert found.control_differing > 0
    assert all(found.fired.values())


def test_a_kernel_edited_to_sum_in_another_order_is_caught(tmp_path: Path) -> None:
    """The tree over the leaves of `down` becomes a left fold: ranks no longer meet, and the tree is another."""
    package, place = compiled(CONTRACT.read_text(), tmp_path)
    path = place / kernel(package, "down").path
    text = path.read_text()
    edited = text.replace("def _subtree(", "def _fold(nodes):\n    return sum(nodes[1:], nodes[0])\n\n\ndef _subtree(")
    edited = edited.replace("return tree_sum(\n        torch.stack(", "return _fold(\n        (")
    assert edited.count("_fold") == 2
    path.write_text(edited)
    about = subject(package, place, "down")
    assert laws()["tensor_parallel"].examine(about).outcome == DIFFERS
    found = laws()["declared_tree"].examine(about)
    assert found.outcome == DIFFERS
    assert "(((((((0+1)+2)+3)+4)+5)+6)+7)" in str(found.domain)


def test_a_kernel_that_depends_on_its_batch_is_caught(tiny: Place) -> None:
    def fault(module: ModuleType) -> ModuleType:
        return faulty(module, matmul=lambda x, weight: module.matmul(x, weight) * (1 if len(x) < 20 else 1.01))

    assert examine("rows_alone", tiny, "down", fault).outcome == DIFFERS


def test_a_kernel_that_changes_from_run_to_run_is_caught(tiny: Place) -> None:
    runs = iter(range(10**6))

    def fault(module: ModuleType) -> ModuleType:
        return faulty(module, silu_gate=lambda x: module.silu_gate(x) + (1 if next(runs) % 5 == 4 else 0))

    assert examine("repeats", tiny, "act", fault).outcome == DIFFERS


def test_a_wrong_result_and_an_unwritten_element_are_beyond_the_bound(tiny: Place) -> None:
    def scaled(module: ModuleType) -> ModuleType:
        return faulty(module, silu_gate=lambda x: module.silu_gate(x) * 1.02)

    def unwritten(module: ModuleType) -> ModuleType:
        return faulty(module, silu_gate=lambda x: torch.empty_like(module.silu_gate(x)))

    assert examine("accuracy", tiny, "act").outcome == "within bound"
    assert examine("accuracy", tiny, "act", scaled).outcome == "beyond bound"
    assert examine("accuracy", tiny, "act", unwritten).outcome == "beyond bound"


def test_a_decode_that_sees_one_key_less_is_caught(tiny: Place) -> None:
    def fault(module: ModuleType) -> ModuleType:
        def short(q, k, v, table, start, lengths, most):
            seen = (lengths - 1).clamp(min=1) if most == 1 else lengths
            return module.paged_attention(q, k, v, table, start, seen, most)

        return faulty(module, paged_attention=short)

    assert examine("attention_resume", tiny, "attn", fault).outcome == DIFFERS


def test_a_comparison_that_cannot_fail_shows_nothing(tiny: Place) -> None:
    def constant(module: ModuleType) -> ModuleType:
        return faulty(module, silu_gate=lambda x: torch.zeros(len(x), x.shape[1] // 2, dtype=x.dtype))

    assert examine("rows_alone", tiny, "act", constant).outcome == BLIND
    assert Finding(compared=0, control_differing=1).outcome == BLIND
    assert Finding(compared=1, control_differing=1, fired={"large": 0}).outcome == BLIND  # type: ignore[arg-type]


def test_launch_tables_hold_every_bucket_and_every_choice(tiny: Place) -> None:
    about = next(k for k in tiny[0].plan.kernels if (k.target, k.module) == ("sm90", "qkv"))
    tables = list(free_launch._tables(about, seed=1))
    buckets = [parameters for _, parameters in about.free_launch]
    assert tables[: len(buckets)] == buckets
    for name, field in implementations()[about.implementation].launch["sm90"].items():
        low, high = field.minimum, field.maximum
        choices = field.choices or range(int(low or 0), int(high or 0) + 1)
        assert {t[name] for t in tables} >= set(choices), name
    assert len(tables) == len({str(t) for t in tables})


def test_launch_tables_hold_nothing_that_a_contract_may_not_say(tiny: Place) -> None:
    about = next(k for k in tiny[0].plan.kernels if (k.target, k.module) == ("sm90", "attn_out"))
    assert {t["schedule"] for t in free_launch._tables(about, seed=1)} == {"tiles", "warps"}  # leaves of 16


def test_launches_that_differ_are_caught_and_those_that_cannot_run_are_named(
    tiny: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cpu kernel stands in for the GPU's: its launches are this module, a wrong one, and one that fails."""
    about = subject(*tiny, "act")
    tables = [{"block": 256}, {"block": 512}, {"block": 1024}]

    def fail(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("out of resources: shared memory")

    modules = {
        256: about.module,
        512: faulty(about.module, silu_gate=lambda x: about.module.silu_gate(x) + 1),
        1024: faulty(about.module, silu_gate=fail),
    }
    monkeypatch.setattr(free_launch, "_tables", lambda kernel, seed: iter(tables))
    monkeypatch.setattr(Subject, "relaunched", lambda self, table: modules[table[0][1]["block"]])
    found = free_launch.LAW.examine(about)
    assert found.outcome == DIFFERS
    assert found.refused == {"block=1024": "RuntimeError: out of resources: shared memory"}
    assert found.domain["launches"] == 2


def test_a_relaunched_kernel_is_the_same_module_of_another_package(tiny: Place) -> None:
    about = subject(*tiny, "act")
    again = about.relaunched(about.kernel.launch)
    assert again.__name__ == "relaunched.cpu.kernels.act"
    x = Draw("cpu", 1, torch.bfloat16).rows(5, 256)
    assert torch.equal(again.silu_gate(x), about.module.silu_gate(x))


def test_drawn_rows_hold_what_they_say() -> None:
    draw = Draw("cpu", 7, torch.bfloat16)
    rows, weight = draw.rows(64, 256), draw.weight(8, 256)
    assert draw.fired.keys() == {"cancelling", "negative zero", "positive zero", "subnormal", "large"}
    assert min(draw.fired.values()) > 0
    exact = rows[3::4].double() @ weight[::2].double().T
    assert torch.count_nonzero(exact) == 0
    assert torch.equal(Draw("cpu", 7, torch.bfloat16).rows(64, 256).view(torch.int16), rows.view(torch.int16))


def test_modules_are_imported_anew(tiny: Place) -> None:
    name = (kernel(tiny[0], "act").dotted(tiny[1].name),)
    assert imported(name, tiny[1].parent)[0] is not imported(name, tiny[1].parent)[0]
