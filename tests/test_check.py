"""The rules together. Each alone has its cases under `cases/`."""

from __future__ import annotations

import pkgutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest

from isoexec_compiler import check, checks, pipeline
from isoexec_compiler.codes import Code
from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.registry import implementations
from tests.case_directories import case_directories, contract_of
from tests.edits import edit, line
from tests.update_contracts import CONTRACTS

RULES = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))


def codes(data: bytes, name: str = "contract.yaml") -> list[str]:
    return [problem.code for problem in pipeline.load(data, name)[1]]


@pytest.mark.parametrize("path", sorted(CONTRACTS.glob("*.yaml")), ids=lambda path: path.stem)
def test_kept_contracts_hold(path: object) -> None:
    assert codes(path.read_bytes()) == []  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_one_file_and_one_code(name: str) -> None:
    module = import_module(f"{checks.__name__}.{name}")
    (code,) = (value for value in vars(module).values() if isinstance(value, Code))
    assert code.id.startswith("K2")
    assert module.check in check.rules()


@pytest.mark.parametrize("case", [c for c in case_directories() if c.name[0] in "CK"], ids=lambda case: case.name)
def test_one_mistake_is_one_code(case: object) -> None:
    code = case.name.partition("_")[0]  # type: ignore[attr-defined]
    assert set(codes(*contract_of(case))) == {code}  # type: ignore[arg-type]


def test_all_problems_are_reported_at_once() -> None:
    data = edit(
        "tiny_dense",
        ("use: silu_gate_rows", "use: silu_gates"),
        ('"0.26.0"', '"0.1"'),
        ("{leaves: 8, leaf_dtype: fp32", "{leaves: 2, leaf_dtype: fp32"),
        ("  mlp_residual: {op: residual_add, width: 64}", "  mlp_residual: {op: residual_add, width: 65}"),
    )
    assert codes(data) == ["K226", "K213", "K201", "K224"]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("leaves", [2, 4, 8])
def test_a_tp_claim_holds_exactly_when_the_tree_can_be_cut(leaves: int, size: int) -> None:
    data = edit(
        "tiny_dense",
        ("{leaves: 8, leaf_dtype: fp32", f"{{leaves: {leaves}, leaf_dtype: fp32"),
        ("sizes: [1, 2, 4]", f"sizes: [1, {size}]"),
    )
    tree = ReductionTree(leaves=leaves, leaf=128 // leaves, shape="balanced")
    assert codes(data) == ([] if tree.obstacle(size) is None else ["K224"])


def test_a_chain_is_never_shared() -> None:
    use = implementations()["matmul_sequential"]
    assert use.tree is not None
    for block in (16, 32, 64):
        data = edit(
            "tiny_dense",
            ("region: [qkv, gate_up, head]", "region: [qkv, gate_up, head, down]"),
            ("region: [attn_out, down]", "region: attn_out"),
            ("constants: {block_k: 64}", f"constants: {{block_k: {block}}}"),
        ).replace(b"schedule: persistent", b"schedule: tiles")
        assert codes(data) == ["K224", "K224"]


@pytest.mark.parametrize(("groups", "size", "holds"), [(4, 2, True), (2, 4, True), (1, 4, True), (4, 8, False)])
def test_few_key_heads_may_be_held_by_several_ranks(groups: int, size: int, holds: bool) -> None:
    columns = (4 + 2 * groups) * 32
    data = edit(
        "tiny_dense",
        ("num_key_value_heads: 2", f"num_key_value_heads: {groups}"),
        ("kv_heads: 2", f"kv_heads: {groups}"),
        ("qkv: {op: matmul, n: 256", f"qkv: {{op: matmul, n: {columns}"),
        ("sizes: [1, 2, 4]", f"sizes: [1, {size}]"),
    )
    assert set(codes(data)) == (set() if holds else {"K223"})


@pytest.mark.parametrize(("days", "expected"), [(-1, ["K229"]), (0, []), (30, [])])
def test_a_waiver_holds_through_its_day(days: int, expected: list[str]) -> None:
    day = (datetime.now(UTC) + timedelta(days=days)).date().isoformat()
    waiver = f'\nwaivers:\n  - {{obligation: step, reason: "x", expires: "{day}"}}\n'
    assert codes(edit("tiny_dense") + waiver.encode()) == expected


def test_a_launch_parameter_that_moves_bits_is_one_value_in_every_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = implementations()["silu_gate_rows"]
    warps = replace(gate.launch["sm90"]["num_warps"], free=False)
    planted = replace(gate, launch={"sm90": {**gate.launch["sm90"], "num_warps": warps}})
    act = line("tiny_dense", "act")
    block = act.split("{block: ")[1].split(",")[0]
    two = act.replace(act.split("sm90: ")[1], "[{max_rows: 64, block: %s, num_warps: 4}, {block: %s, num_warps: 8}]\n")
    data = edit("tiny_dense", (act, two % (block, block)))
    assert codes(data) == []
    monkeypatch.setitem(implementations(), "silu_gate_rows", planted)  # type: ignore[arg-type]
    assert codes(data) == ["K207"]


def test_unknown_family_still_lets_other_rules_run() -> None:
    assert codes(edit("tiny_dense", ("family: qwen3", "family: llama"), ('"0.19.2"', '"1.0"'))) == ["K201", "K226"]
