# SPDX-License-Identifier: Apache-2.0
"""The gates of the gated delta rule; every value head has its own."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.gdn_gates import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`gdn_gates`."""
    import torch

    heads = int(attributes["heads"])
    a, b = draw.rows(rows, heads), draw.rows(rows, heads)
    a_log, dt_bias = (draw.normal(heads, dtype=torch.float32) for _ in range(2))
    call = Call(arguments=(a, b, a_log, dt_bias), rows=(0, 1), truth=lambda: reference(a, b, a_log, dt_bias))
    return {"gdn_gates": call}
