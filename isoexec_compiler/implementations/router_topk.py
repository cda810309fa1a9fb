"""Router with fp32 logits, selection by a total order, and sums in a stated order."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    small = {"block_m": 16, "block_n": 16, "block_k": 64, "num_warps": 4, "num_stages": 4}
    large = {"block_m": 64, "block_n": 64, "block_k": 64, "num_warps": 4, "num_stages": 3}
    return Settings(
        constants={"product": "exact", "slots": "expert"},
        launch={"sm90": ((256, small), (None, large))},
    )


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    if int(attributes["hidden"]) % 64:
        yield f"hidden {attributes['hidden']} is not a multiple of 64"
    if int(attributes["top_k"]) > int(attributes["experts"]):
        yield f"{attributes['top_k']} of {attributes['experts']} experts cannot be chosen"


IMPLEMENTATION = Implementation(
    name="router_topk",
    op="router",
    version=1,
    doc=(
        "Logits never leave fp32. Products of two bf16 values are exact in fp32, so tensor cores (`exact`) lose no bit "
        "of a product that fp32 units (`ieee`) keep; tf32 is never used."
    ),
    rounding=(
        "logits = x W^T, products exact in fp32, summed in fp32 in order of k; not rounded further",
        "softmax over `selected`: e_j = exp(v_j - v_0), their sum in order of descending logit, w = e / sum",
        "softmax over `all`: p = exp(v - v_0) / sum, the sum the tree of adjacent pairs over the experts padded with "
        "zeros to a power of two; renormalised: divided by the sum of the chosen in order of descending logit",
        "w * scaling in fp32, when scaling is not 1",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    constants={
        "product": Field(type="enum", choices=("exact", "ieee"), doc="tensor cores on bf16 operands, or fp32 units"),
        "slots": Field(type="enum", choices=("expert", "score"), doc="order of a token's slots: the order of combine"),
    },
    launch={
        "sm90": {
            "block_m": Field(type="int", choices=(16, 32, 64, 128), free=True, doc="tokens of one tile"),
            "block_n": Field(type="int", choices=(16, 32, 64, 128, 256), free=True, doc="experts of one tile"),
            "block_k": Field(type="int", choices=(16, 32, 64, 128), free=True, doc="features of one step"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
            "num_stages": Field(type="int", choices=(1, 2, 3, 4, 5), free=True, doc="depth of the load pipeline"),
        }
    },
    problems=_problems,
    recommend=_recommend,
)
