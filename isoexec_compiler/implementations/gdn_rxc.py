"""Gated delta rule, row-exact chunkwise: the trainer's chunk and the decoder's row are one function of a row."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values

CHUNK_ROUNDING = (
    "G_t = G_{t-1} + g_t * fp32(log2 e), fp32, from the chunk's first row; E_ts = exp2(G_t - G_s) by ex2.approx",
    "A_ts = (k_t . k_s) * E_ts * -beta_t and P_ts = (q_t . k_s) * E_ts in fp32, s < t; P rounded to bf16",
    "D_t = e_t + A_t D over the 16-row block: A, D as high + low bf16, products high*high, high*low, low*high",
    "C = A D over earlier blocks, the same three products, rounded to bf16",
    "Q = P D + (q_t . k_t) D_t in fp32, rounded to bf16",
    "R_t = (v_t - (S k_t) * exp2(G_t)) * beta_t in fp32, then + C R over earlier rows, rounded to bf16",
    "o_t = (S q_t) * exp2(G_t), then + Q R over earlier rows, then + R_t * (q_t . k_t), * scale, rounded to bf16",
    "at a full chunk: S = S * exp2(G_63) + k^T bf16((D_high R) * exp2(G_63 - G)); S fp32, read as bf16",
)
CHUNK_CONSTANTS = {
    "chunk": Field(type="int", choices=(64,), doc="rows between updates of the state, from the sequence's start"),
    "block": Field(type="int", choices=(16,), doc="rows solved by forward substitution"),
    "state": Field(type="enum", choices=("fp32", "bf16"), doc="dtype of the state carried from chunk to chunk"),
    "snapshot": Field(type="enum", choices=("bf16",), doc="dtype in which rows read the state"),
}
SCAN_LAUNCH = {
    "scan_schedule": Field(
        type="enum", choices=("warp_specialised", "tiles"), free=True, doc="how the pass over the chunks is scheduled"
    ),
}
STEP_LAUNCH = {
    # Passes of 64 are excluded: ptxas loses descriptors of their products (tests/laws/test_gdn_assembled.py).
    "step_block_v": Field(type="int", choices=(128,), free=True, doc="value columns a step program reads at a time"),
    "step_warps": Field(type="int", choices=(4, 8), free=True, doc="warps of one step program"),
}


def chunk_settings(**launch: int) -> Settings:
    """The constants of every chunk form, and one launch bucket: the scan's schedule and these."""
    constants: Values = {"chunk": 64, "block": 16, "state": "fp32", "snapshot": "bf16"}
    return Settings(constants=constants, launch={"sm90": ((None, {"scan_schedule": "warp_specialised", **launch}),)})


def chunk_problems(attributes: Values, constants: Values) -> Iterator[str]:
    """Why these constants do not fit; shared by every implementation that holds a chunk form."""
    if int(attributes["v_heads"]) not in (group * int(attributes["qk_heads"]) for group in (1, 2, 4, 8)):
        yield f"{attributes['v_heads']} value heads cannot share {attributes['qk_heads']} key heads by 1, 2, 4 or 8"
    for name in ("key_dim", "value_dim"):
        if int(attributes[name]) not in (64, 128):
            yield f"{name} {attributes[name]} is neither 64 nor 128"
    if constants["state"] != "fp32":
        yield "the state runs on through the whole sequence: rounding it at chunk edges is refused, keep it in fp32"


def _recommend(attributes: Values) -> Settings:
    return chunk_settings(step_block_v=128, step_warps=4)


IMPLEMENTATION = Implementation(
    name="gdn_rxc",
    op="gated_delta_rule",
    version=1,
    doc=(
        "Within a chunk of 64 rows, 16-row blocks are solved by forward substitution and folded onto the residual of "
        "the state at the chunk's first row. Every row reads rows no later than itself, so a row alone in decode has "
        "the bits of the same row in a 64-row tile, and a sequence may be split, resumed or rolled back at any token."
    ),
    rounding=CHUNK_ROUNDING,
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants=CHUNK_CONSTANTS,
    launch={"sm90": {**SCAN_LAUNCH, **STEP_LAUNCH}},
    problems=chunk_problems,
    recommend=_recommend,
    exact_with=("gdn_chunk_everywhere",),
)
