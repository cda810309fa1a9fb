"""Sums of two rows."""

from __future__ import annotations

from isoexec_compiler.draw import Draw
from isoexec_compiler.ops.residual_add import reference
from isoexec_compiler.registry import Values
from isoexec_compiler.trial import Call


def calls(attributes: Values, rows: int, draw: Draw) -> dict[str, Call]:
    """`residual_add`."""
    width = int(attributes["width"])
    x, residual = draw.rows(rows, width), draw.rows(rows, width)
    return {"residual_add": Call(arguments=(x, residual), rows=(0, 1), truth=lambda: (reference(x, residual),))}
