"""Attention by online softmax over blocks of keys at absolute positions, in splits of a fixed length."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    head_dim = int(attributes["head_dim"])
    specialised: Values = {"schedule": "warp_specialised", "num_warps": 4}
    few_rows = {
        **specialised, "block_m": 64, "num_stages": 6 if head_dim <= 64 else 4, "programs": 132,
    }  # fmt: skip
    many_rows = {
        **specialised, "block_m": 128, "num_stages": 2 if head_dim > 128 else 4, "programs": 0,
    }  # fmt: skip
    return Settings(
        constants={"kv_block": 64, "split": 1024},
        launch={"sm90": ((64, few_rows), (None, many_rows))},
    )


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    head_dim, split, kv_block = (int(v) for v in (attributes["head_dim"], constants["split"], constants["kv_block"]))
    if head_dim < 16 or head_dim > 256 or head_dim & (head_dim - 1):
        yield f"head_dim {head_dim} is not one of 16, 32, 64, 128, 256"
    if int(attributes["q_heads"]) % int(attributes["kv_heads"]):
        yield f"{attributes['q_heads']} query heads cannot be shared equally by {attributes['kv_heads']} key heads"
    if float(attributes["scale"]) <= 0:
        yield "the scale must be positive: the running maximum is taken before it"
    if split % kv_block:
        yield f"a split of {split} keys does not hold a whole number of blocks of {kv_block}"


IMPLEMENTATION = Implementation(
    name="attention_blocks",
    op="attention",
    version=1,
    doc=(
        "Blocks and splits lie at absolute key positions, so packed prefill, chunks against a paged cache and one-row "
        "decode are one function of a row and its keys; a block or split that a row does not see changes no bit."
    ),
    rounding=(
        "scores = q k^T per block, products of bf16 (fp32 on the cpu) summed in fp32 in order of the feature",
        "top = max(top, max(scores) * c) with c = fp32(scale * log2 e); p = exp2(fma(scores, c, -top)) in fp32",
        "eight running sums by column modulo eight: sums * exp2(old top - top) + the block halved to eight columns",
        "accumulator * exp2(old top - top), then v times p rounded to the model dtype, summed in order of the key",
        "at the end of a split: adjacent pairs of its eight sums are added, then halves: one sum",
        "splits merged by ascending index: a * exp2(a.top - top) + b * exp2(b.top - top) in fp32",
        "accumulator * fp32(1 / sum) + 0, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={
        "kv_block": Field(type="int", choices=(16, 32, 64, 128), doc="keys that share one update of the maximum"),
        "split": Field(type="int", minimum=16, multiple_of=16, doc="keys folded before a merge, at absolute positions"),
    },
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("tiles", "warp_specialised"),
                free=True,
                doc="a tile a program, or a copying warp and a multiplying warpgroup for every 64 rows (of 64 or 128)",
            ),
            "block_m": Field(type="int", choices=(16, 32, 64, 128), free=True, doc="rows (tokens x heads) of one tile"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
            "num_stages": Field(
                type="int",
                choices=(1, 2, 3, 4, 5, 6),
                free=True,
                doc="depth of the load pipeline, at most what fits; half of it where tiles of 64 rows are more than "
                "`programs` and share multiprocessors",
            ),
            "programs": Field(
                type="int", minimum=0, free=True, doc="CTAs to reach by sharing splits out; 0: one CTA walks them all"
            ),
        }
    },
    problems=_problems,
    recommend=_recommend,
)
