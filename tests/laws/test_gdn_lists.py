"""Lists of where packed sequences begin are refused by value on the device: later work does not run, waiting raises.

A refusal ends the process's use of the device, so every list has a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.targets import HOPPER

GOOD = [0, 3, 3, 5]
MALFORMED = ([1, 5], [0, 6, 4, 5], [0, 4], [0, 57, 59, 64])
CALL = """
import torch
from tests.laws.gdn_inputs import integers, kernel, rows
module, given, cu = kernel("gdn_rxc", "sm90"), rows(5, "sm90"), integers({cu}, "sm90")
lanes = torch.arange(1, len(cu), dtype=torch.int32, device="cuda")
caches = module.new_caches(len(cu), "cuda")
torch.cuda.synchronize()
module.{call}
torch.cuda.synchronize()
"""
CALLS = {
    "packed": "gated_delta_rule(**given, cu_seqlens=cu)",
    "resumed": "gated_delta_extend(**given, cu_seqlens=cu, state=caches, slots=lanes, positions=lanes)",
}


@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
def test_malformed_lists_stop_the_device() -> None:
    cases = [(name, cu) for name in CALLS for cu in (GOOD, *MALFORMED)]

    def run(case: tuple[str, list[int]]) -> subprocess.CompletedProcess[str]:
        code = CALL.format(cu=case[1], call=CALLS[case[0]])
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    with ThreadPoolExecutor(len(cases)) as pool:
        for (name, cu), done in zip(cases, pool.map(run, cases), strict=True):
            if cu == GOOD:
                assert done.returncode == 0, (name, done.stderr[-500:])
            else:
                assert "unspecified launch failure" in done.stderr, (name, cu, done.stderr[-500:])
