"""Gated delta rule, recurrent everywhere: one fp32 step a token in every case."""

from __future__ import annotations

from isoexec_compiler.implementations.gdn_native_step import (
    RECURRENT_LAUNCH,
    RECURRENT_ROUNDING,
    recurrent_problems,
    recurrent_settings,
)
from isoexec_compiler.registry import Field, Implementation

IMPLEMENTATION = Implementation(
    name="gdn_recurrent_everywhere",
    op="gated_delta_rule",
    version=3,
    doc="The decode step of `gdn_native_step`, token after token in every case: exact, the most accurate, slow.",
    rounding=RECURRENT_ROUNDING,
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={"state": Field(type="enum", choices=("fp32",), doc="dtype of the state between tokens")},
    launch={"sm90": RECURRENT_LAUNCH},
    problems=recurrent_problems,
    recommend=recurrent_settings,
    exact_with=("gdn_native_step",),
)
