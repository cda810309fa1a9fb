"""Gated delta rule in decode as engines run it: one fp32 recurrent step a token. Pairs with `gdn_native_chunk`."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values

RECURRENT_SUMS = (
    "S k and S q: place j of four sums keys c with c // 4 % 4 = j in order, fused on sm90; then the tree over places"
)
RECURRENT_ROUNDING = (
    "S * exp2(g * fp32(log2 e)), then u = (v - S k) * beta, each rounded in fp32; then S + u k^T, fused on sm90",
    RECURRENT_SUMS,
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


def recurrent_problems(attributes: Values, constants: Values) -> Iterator[str]:
    """Why these sizes do not fit a recurrence."""
    if int(attributes["key_dim"]) not in (32, 64, 128, 256):
        yield f"key_dim {attributes['key_dim']} is not 32, 64, 128 or 256"


IMPLEMENTATION = Implementation(
    name="gdn_native_step",
    op="gated_delta_rule",
    version=3,
    doc=(
        "The usual engine's decode: the state after every token in fp32, no tensor cores. Its bits are not those of "
        "chunk kernels, so no `equal_bits` claim over both can hold: the baseline that the others replace."
    ),
    rounding=RECURRENT_ROUNDING,
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={"state": Field(type="enum", choices=("fp32",), doc="dtype of the state between tokens")},
    launch={"sm90": RECURRENT_LAUNCH},
    problems=recurrent_problems,
    cases=("engine_decode",),
    recommend=recurrent_settings,
    exact_with=("gdn_recurrent_everywhere",),
)
