"""Gated delta rule in decode as engines run it: one fp32 recurrent step a token. Pairs with `gdn_native_chunk`."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values

RECURRENT_ROUNDING = (
    "S * exp2(g * fp32(log2 e)), then u = (v - S k) * beta, each rounded in fp32; then S + u k^T, fused on sm90",
    "S k and S q: in eight places every eighth key in order, fused on sm90, then the balanced tree of adjacent places",
    "o = (S q) * scale, rounded to bf16",
)
RECURRENT_LAUNCH = {
    "recurrent_block_v": Field(type="int", choices=(8, 16, 32, 64, 128), free=True, doc="value columns of one program"),
    "recurrent_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps of one program"),
}


def recurrent_settings(attributes: Values) -> Settings:
    """What every recurrence recommends."""
    launch = {"recurrent_block_v": 8, "recurrent_warps": 1}
    return Settings(constants={"state": "fp32"}, launch={"sm90": ((None, launch),)})


IMPLEMENTATION = Implementation(
    name="gdn_native_step",
    op="gated_delta_rule",
    version=2,
    doc=(
        "The usual engine's decode: the state after every token in fp32, no tensor cores. Its bits are not those of "
        "chunk kernels, so no `equal_bits` claim over both can hold: the baseline that the others replace."
    ),
    rounding=RECURRENT_ROUNDING,
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={"state": Field(type="enum", choices=("fp32",), doc="dtype of the state between tokens")},
    launch={"sm90": RECURRENT_LAUNCH},
    cases=("engine_decode",),
    recommend=recurrent_settings,
    exact_with=("gdn_recurrent_everywhere",),
)
