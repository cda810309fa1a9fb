"""No product of the row-exact chunk form reads shared memory that nobody wrote for it: the machine code, checked.

A step in passes of 64 columns differed from run to run. Its PTX is right; the machine code that ptxas 12.8 makes of it
loses the descriptors of some operands, and shows a mark of it (`tests.support.sass`). So 128 columns stand in every
program, whether a head has them or not.
"""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.implementations.gdn_rxc import SCAN_LAUNCH, STEP_LAUNCH
from isoexec_compiler.ops.gated_delta_rule import launchers
from isoexec_compiler.registry import Values
from tests.support.ptx import Variant, compiled_launches
from tests.support.rendering import render_kernel
from tests.support.sass import disassembled, lost_descriptors
from tests.support.targets import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")

SCHEDULES = SCAN_LAUNCH["scan_schedule"].choices
WIDTHS = ((64, 64), (64, 128), (128, 64), (128, 128))


def compiled(
    function: str, launch: dict[str, int], heads: int = 16, widths: tuple[int, int] = (128, 128)
) -> list[Variant]:
    sizes: Values = {"qk_heads": heads, "v_heads": 32, "key_dim": widths[0], "value_dim": widths[1], "scale": 0.125}
    module = render_kernel("gdn_rxc", "sm90", sizes, launch=((None, launch),))
    with compiled_launches() as found:
        launchers(module, sizes, torch.bfloat16, 80, "cpu")[function]()
    return found


def lost(kernels: list[Variant]) -> dict[str, list[str]]:
    """Faulty additions by kernel, of those that hold products."""
    texts = {kernel.name: text for kernel in kernels if "HGMMA" in (text := disassembled(kernel))}
    assert texts
    return {name: found for name, text in texts.items() if (found := list(lost_descriptors(text)))}


@pytest.mark.parametrize(("schedule", "warps"), zip(SCHEDULES, STEP_LAUNCH["step_warps"].choices, strict=True))
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("heads", [4, 8, 16, 32])
def test_steps_keep_their_descriptors(heads: int, widths: tuple[int, int], schedule: str, warps: int) -> None:
    launch = {"scan_schedule": schedule, "step_block_v": 128, "step_warps": warps}
    assert not lost(compiled("gated_delta_step", launch, heads, widths))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_chunks_keep_their_descriptors(schedule: str) -> None:
    launch = {"scan_schedule": schedule, "step_block_v": 128, "step_warps": 4}
    assert not lost(compiled("gated_delta_rule", launch) + compiled("gated_delta_extend", launch))


@pytest.mark.parametrize("warps", [4, 8])
def test_the_excluded_step_loses_descriptors(warps: int) -> None:
    """The control. Where it fails, the assembler is another: prove 64 columns again, then admit them."""
    launch = {"scan_schedule": "tiles", "step_block_v": 64, "step_warps": warps}
    assert set(lost(compiled("gated_delta_step", launch, widths=(128, 64)))) == {"_step_kernel"}
