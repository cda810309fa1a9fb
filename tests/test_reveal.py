"""Trees found from outputs: ours, wrong ones, and torch's own."""

from __future__ import annotations

from pathlib import Path

import torch
from typer.testing import CliRunner

from isoexec_compiler.cli import app
from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.reveal import of_product, text
from tests.proofs import CONTRACT, compiled
from tests.support.rendering import render_kernel

EIGHT = ReductionTree(leaves=8, leaf=16, shape="balanced")
CHAIN = ReductionTree(leaves=8, leaf=16, shape="chain")
BALANCED = "(((0+1)+(2+3))+((4+5)+(6+7)))"


def tree_product(leaves: int):
    attributes = {"n": 8, "k": 128, "split": "rows", "out": "model"}
    constants = {"leaves": leaves, "leaf_dtype": "fp32", "block_k": 16}
    return render_kernel("matmul_tree", "cpu", attributes, constants).matmul


def folded(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each of eight leaves by a tree, the leaves by a left fold."""
    products = (x.float()[:, None] * weight.float()).unflatten(-1, (8, 16))
    while products.shape[-1] > 1:
        products = products[..., ::2] + products[..., 1::2]
    leaves = products[..., 0].unbind(-1)
    return sum(leaves[1:], leaves[0]).to(x.dtype)


def test_the_declared_tree_is_found() -> None:
    found = of_product(tree_product(8), EIGHT, 8, "bf16", "cpu", "down")
    assert found.agrees
    assert text(found.found) == BALANCED
    assert found.rows == 276


def test_two_leaves_for_eight_are_told_apart() -> None:
    """Four leaves are not: each adds two blocks, which is the lowest level of the tree over eight."""
    found = of_product(tree_product(2), EIGHT, 8, "bf16", "cpu", "down")
    assert not found.agrees
    assert text(found.found) == "((((0+1)+2)+3)+(((4+5)+6)+7))"
    assert of_product(tree_product(4), EIGHT, 8, "bf16", "cpu", "down").agrees


def test_a_left_fold_is_told_apart() -> None:
    found = of_product(folded, EIGHT, 8, "bf16", "cpu", "folded")
    assert not found.agrees
    assert text(found.found) == "(((((((0+1)+2)+3)+4)+5)+6)+7)"
    assert of_product(folded, CHAIN, 8, "bf16", "cpu", "folded").agrees


def test_the_sides_of_an_addition_may_be_exchanged_and_nothing_else() -> None:
    def mirrored(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return tree_product(8)(x.flip(1), weight)

    def shifted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return tree_product(8)(x.roll(16, 1), weight)

    assert of_product(mirrored, EIGHT, 8, "bf16", "cpu", "mirrored").agrees
    assert not of_product(shifted, EIGHT, 8, "bf16", "cpu", "shifted").agrees


def test_many_terms_of_one_addition_are_one_node() -> None:
    def at_once(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (x.double() @ weight.double().T).where(x.abs().amax(1, keepdim=True) < 2, 0.0).float()

    found = of_product(at_once, CHAIN, 8, "bf16", "cpu", "at once")
    assert text(found.found) == "(0+1+2+3+4+5+6+7)"
    assert not found.agrees


def test_what_is_no_tree_is_said_so() -> None:
    found = of_product(lambda x, weight: torch.full((len(x), 8), 3.0), EIGHT, 8, "bf16", "cpu", "constant")
    assert not found.agrees
    assert "not one tree" in found.problem


def test_the_command_shows_ours_beside_torch(tmp_path: Path) -> None:
    compiled(CONTRACT.read_text(), tmp_path)
    options = ["--target", "cpu", "--region", "down", "--stock", "-o", str(tmp_path)]
    done = CliRunner().invoke(app, ["reveal", str(CONTRACT), *options])
    assert done.exit_code == 0
    ours, stock = done.stdout.splitlines()
    assert ours == f"down: {BALANCED}, as declared"
    assert stock.startswith("down by torch.mm: (")
