"""What the compiled kernels of the gated delta rule may hold: no atomics, no unfused surprise, one operand width."""

from __future__ import annotations

import re

import pytest
import torch

from isoexec_compiler.ops.gated_delta_rule import launchers
from isoexec_compiler.registry import implementations
from tests.support.folds import folded_additions
from tests.support.ptx import Variant, compiled_launches, offences, operand_widths
from tests.support.rendering import render_kernel
from tests.support.targets import INTERPRETING

ATTRIBUTES = {"qk_heads": 1, "v_heads": 2, "key_dim": 64, "value_dim": 64, "scale": 0.125}
ALLOWED = ("approximate transcendental", "flush to zero", "unrounded multiply or add, which ptxas may fuse")
LAUNCHED = {
    "gdn_rxc": {
        "_hopper_scan_kernel",
        "_gather_kernel",
        "_stow_kernel",
        "_gradient_kernel",
        "_step_kernel",
        "_hopper_edge_kernel",
    },
    "gdn_chunk_everywhere": {"_hopper_scan_kernel", "_gather_kernel", "_stow_kernel", "_gradient_kernel"},
    "gdn_native_chunk": {"_hopper_scan_kernel", "_gradient_kernel"},
    "gdn_cpr": {
        "_hopper_scan_kernel",
        "_hopper_chunk_recurrent_kernel",
        "_gradient_kernel",
        "_cpr_step_kernel",
        "_chain_kernel",
    },
    "gdn_recurrent_everywhere": {"_recurrent_kernel", "_gradient_kernel", "_recurrent_step_kernel"},
    "gdn_native_step": {"_recurrent_step_kernel"},
}
FUSED = ("gradient", "reverse", "recurrent", "cpr_step")  # gradients have no bits to keep; recurrences say tl.fma

pytestmark = pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")


def compiled(implementation: str) -> list[Variant]:
    """What packed, extend, step and backward functions launch."""
    module = render_kernel(implementation, "sm90", ATTRIBUTES)
    with compiled_launches() as found:
        for launcher in launchers(module, ATTRIBUTES, torch.bfloat16, 80, "cpu").values():
            launcher()
    return found


@pytest.mark.parametrize("implementation", LAUNCHED)
def test_kernels_hold_nothing_that_moves_bits(implementation: str) -> None:
    found = compiled(implementation)
    assert LAUNCHED[implementation] <= {kernel.name for kernel in found}
    for kernel in found:
        allowed = (*ALLOWED, "fused multiply-add") if any(part in kernel.name for part in FUSED) else ALLOWED
        assert not offences(kernel.ptx, allowed), (kernel.name, offences(kernel.ptx, allowed))
        assert set(re.findall(r"(\S+)\.ftz", kernel.ptx)) <= {"ex2.approx"}, kernel.name
        assert set(operand_widths(kernel.ttgir)) <= {2}, (kernel.name, operand_widths(kernel.ttgir))
        assert not list(folded_additions(kernel.source)), kernel.name


def test_every_implementation_is_scanned() -> None:
    assert set(LAUNCHED) == {name for name, known in implementations().items() if known.op == "gated_delta_rule"}


def test_every_dot_takes_bf16_operands() -> None:
    """A tf32 dot's bits depend on the width of loads above its operands; these kernels hold none."""
    dots = 0
    for kernel in compiled("gdn_rxc"):
        dots += kernel.ttgir.count("tt.dot") + kernel.ttgir.count("warp_group_dot ")
        assert "tf32.tf32" not in kernel.ptx, kernel.name
    assert dots > 20
