"""What the compiled kernels of the gated delta rule may hold: no atomics, no unfused surprise, one operand width."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest

from tests.laws.gdn_inputs import edges, integers, rows
from tests.support.ptx import Variant, compiled_launches, offences, operand_widths
from tests.support.rendering import render_kernel
from tests.support.targets import INTERPRETING

ATTRIBUTES = {"qk_heads": 1, "v_heads": 2, "key_dim": 64, "value_dim": 64, "scale": 0.125}
ALLOWED = ("approximate transcendental", "flush to zero", "unrounded multiply or add, which ptxas may fuse")

pytestmark = pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")


def compiled(implementation: str) -> list[Variant]:
    module, given = render_kernel(implementation, "sm90", ATTRIBUTES), rows(80, "cpu")
    cu, one = edges((80,), "cpu"), integers([1], "cpu")
    with compiled_launches() as found:
        if hasattr(module, "gated_delta_rule"):
            out = module.gated_delta_rule(**{n: x.requires_grad_() for n, x in given.items()}, cu_seqlens=cu)
            out.backward(out.detach())
            given = {n: x.detach() for n, x in given.items()}
            with suppress(IndexError):
                module.gated_delta_extend(
                    **given, cu_seqlens=cu, state=module.new_caches(2, "cpu"), slots=one, positions=one
                )
        if hasattr(module, "gated_delta_step"):
            row = {n: x[:1] for n, x in given.items()}
            with suppress(IndexError):
                module.gated_delta_step(**row, state=module.new_caches(2, "cpu"), slots=one, positions=one)
    return found


@pytest.mark.parametrize("implementation", ["gdn_rxc", "gdn_cpr", "gdn_recurrent_everywhere", "gdn_native_step"])
def test_kernels_hold_nothing_that_moves_bits(implementation: str) -> None:
    found = compiled(implementation)
    assert found
    for kernel in found:
        allowed = (*ALLOWED, "fused multiply-add") if "gradient" in kernel.name or "reverse" in kernel.name else ALLOWED
        assert not offences(kernel.ptx, allowed), (kernel.name, offences(kernel.ptx, allowed))
        assert set(re.findall(r"(\S+)\.ftz", kernel.ptx)) <= {"ex2.approx"}, kernel.name
        assert set(operand_widths(kernel.ttgir)) <= {2}, (kernel.name, operand_widths(kernel.ttgir))


def test_every_dot_takes_bf16_operands() -> None:
    """A tf32 dot's bits depend on the width of loads above its operands; these kernels hold none."""
    dots = 0
    for kernel in compiled("gdn_rxc"):
        dots += kernel.ttgir.count("tt.dot") + kernel.ttgir.count("warp_group_dot ")
        assert "tf32.tf32" not in kernel.ptx, kernel.name
    assert dots > 20
