"""What the MoE kernels become on Hopper, without a GPU: no atomics, no approximate or contracted arithmetic."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
import torch

from isoexec_compiler.registry import Values
from tests.laws.moe_layer import LARGE
from tests.support.ptx import Variant, compiled_launches, offences
from tests.support.rendering import render_kernel
from tests.support.sass import disassembled, lost_descriptors
from tests.support.targets import INTERPRETING

BF16 = torch.bfloat16
PROJECTION = {"experts": LARGE.experts, "top_k": LARGE.top_k, "hidden": LARGE.hidden, "width": LARGE.width}
ROUTE = {"hidden": LARGE.hidden, "experts": LARGE.experts, "top_k": LARGE.top_k, "renormalise": True, "scaling": 1.0}
# One bucket of the recommended launches each: tiles, experts, and both heights of the resident schedule.
TOKENS = {"one token": 1, "decode": 16, "batch": 2048, "prefill": 8192}


def integers(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32)


def launches(name: str, case: str) -> Iterator[Variant]:
    """Every variant that a function of the implementation launches in a case."""
    tokens = TOKENS[case]
    rows, device = tokens * LARGE.top_k, SimpleNamespace(multi_processor_count=132)
    with mock.patch("torch.cuda.get_device_properties", return_value=device), compiled_launches() as found:
        if name == "router":
            module = render("router_topk", {**ROUTE, "softmax": "all"})
            weight = torch.empty(LARGE.experts, LARGE.hidden, dtype=BF16)
            module.router(torch.empty(tokens, LARGE.hidden, dtype=BF16), weight)
            module.dispatch(integers(rows).view(tokens, LARGE.top_k))
        elif name == "expert_gate_up":
            module = render("expert_gate_up_sequential", PROJECTION)
            weight = torch.empty(LARGE.experts, 2 * LARGE.width, LARGE.hidden, dtype=BF16)
            x = torch.empty(tokens, LARGE.hidden, dtype=BF16)
            module.expert_gate_up(x, weight, integers(rows), integers(LARGE.experts + 1))
        elif name == "expert_act":
            module = render("expert_act_swiglu", {"top_k": LARGE.top_k, "width": LARGE.width, "weighted": True})
            gate_up = torch.empty(rows, 2 * LARGE.width, dtype=BF16)
            module.expert_act(gate_up, torch.empty(tokens, LARGE.top_k), integers(rows))
        elif name == "expert_down":
            module = render("expert_down_tree", PROJECTION)
            for ranks in (1, 2, 4, 8):
                share = LARGE.width // ranks
                weight = torch.empty(LARGE.experts, LARGE.hidden, share, dtype=BF16)
                hidden = torch.empty(rows, share, dtype=BF16)
                module.expert_down(hidden, weight, integers(rows), integers(LARGE.experts + 1))
        elif name == "expert_combine":
            module = render("expert_combine_slots", {"hidden": LARGE.hidden, "top_k": LARGE.top_k, "weighted": False})
            for ranks in (1, 8):
                parts = torch.empty(ranks, tokens, LARGE.top_k, LARGE.hidden)
                module.combine(parts, torch.empty(tokens, LARGE.top_k))
        elif name == "shared_gate":
            module = render("shared_gate_tree", {"hidden": LARGE.hidden})
            x = torch.empty(tokens, LARGE.hidden, dtype=BF16)
            module.shared_gate(x, torch.empty(1, LARGE.hidden, dtype=BF16))
        else:
            module = render("shared_combine_once", {"hidden": LARGE.hidden})
            x = torch.empty(tokens, LARGE.hidden, dtype=BF16)
            module.shared_combine(x, x, torch.empty(tokens))
    yield from found


def render(implementation: str, attributes: Values) -> ModuleType:
    return render_kernel(implementation, "sm90", attributes)


# Explicit `tl.fma` in the exponential; everything else is a product or a sum that is rounded.
ALLOWED = dict.fromkeys(("router", "expert_act", "shared_gate"), ("fused multiply-add",))
NAMES = ("router", "expert_gate_up", "expert_act", "expert_down", "expert_combine", "shared_gate", "shared_combine")


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", TOKENS)
def test_no_banned_instruction(name: str, case: str) -> None:
    found = list(launches(name, case))
    assert found
    for variant in found:
        assert offences(variant.ptx, ALLOWED.get(name, ())) == (), variant.name
        moves = variant.name in ("_expert_act_kernel", "_expert_combine_kernel", "_shared_combine_kernel")
        wide = re.search(r"\bld\.global\S*\.v4\.b32", variant.ptx)
        assert not moves or wide, f"{variant.name} loads less than 16 bytes a thread"


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
@pytest.mark.parametrize("name", ["expert_gate_up", "expert_down"])
@pytest.mark.parametrize("case", ["batch", "prefill"])
def test_products_neither_spill_nor_wait_for_each_other(name: str, case: str, tmp_path: Path) -> None:
    """What ptxas makes of the warp-specialised kernels: registers suffice, no wgmma is serialised, and every one reads
    the shared memory that it was told to."""
    found = [variant for variant in launches(name, case) if variant.name.startswith("_hopper")]
    assert found
    for variant in found:
        source = tmp_path / "kernel.ptx"
        source.write_text(variant.ptx)
        command = [ptxas(), "-v", "-arch=sm_90a", str(source), "-o", str(tmp_path / "kernel.cubin")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
        assert "Performance Loss" not in said, said
        assert " 0 bytes spill stores, 0 bytes spill loads" in said, said
        assert not list(lost_descriptors(disassembled(variant)))


def ptxas() -> str:
    """The assembler that Triton brings."""
    from triton import knobs

    return str(knobs.nvidia.ptxas.path)
