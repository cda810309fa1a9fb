"""The chain of chunkwise-parallel recurrence keeps the descriptors of its products: its machine code, checked.

What may go wrong, and a launch in which it does, stands in `test_gdn_assembled`.
"""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops.gated_delta_rule import launchers
from isoexec_compiler.registry import Values
from tests.support.ptx import compiled_launches
from tests.support.rendering import render_kernel
from tests.support.sass import disassembled, lost_descriptors
from tests.support.targets import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")


@pytest.mark.parametrize("widths", [(64, 64), (64, 128), (128, 64), (128, 128)])
@pytest.mark.parametrize("heads", [16, 32])
def test_chains_keep_their_descriptors(heads: int, widths: tuple[int, int]) -> None:
    sizes: Values = {"qk_heads": heads, "v_heads": 32, "key_dim": widths[0], "value_dim": widths[1], "scale": 0.125}
    module = render_kernel("gdn_cpr", "sm90", sizes)
    with compiled_launches() as found:
        launchers(module, sizes, torch.bfloat16, 80, "cpu")["gated_delta_step"]()
    texts = {kernel.name: disassembled(kernel) for kernel in found}
    assert "HGMMA" in texts["_chain_kernel"]
    assert not [line for text in texts.values() for line in lost_descriptors(text)]
