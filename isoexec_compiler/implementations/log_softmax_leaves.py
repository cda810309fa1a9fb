"""Log-softmax over a vocabulary cut into leaves, each read once."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.reduction import ReductionTree
from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    vocab, padded, leaves = int(attributes["vocab"]), int(attributes["padded_vocab"]), int(constants["leaves"])
    if not vocab <= padded < 2 * vocab:
        yield f"padded_vocab {padded} must be at least vocab {vocab} and less than twice that"
    if padded % leaves:
        yield f"padded_vocab {padded} cannot be cut into {leaves} equal leaves"
    if int(constants["lanes"]) > int(constants["block"]):
        yield f"lanes {constants['lanes']} exceed the block of {constants['block']} columns"


def _tree(attributes: Values, constants: Values) -> ReductionTree:
    leaves = int(constants["leaves"])
    return ReductionTree(leaves=leaves, leaf=int(attributes["padded_vocab"]) // leaves, shape="balanced")


def _recommend(attributes: Values) -> Settings:
    leaf = -(-int(attributes["padded_vocab"]) // 8)
    block = min(4096, 1 << (leaf - 1).bit_length())
    free: Values = {"schedule": "cluster", "num_warps": 4, "finish_block": 1024}
    # Few rows leave each program alone on its multiprocessor.
    few: Values = {**free, "token_schedule": "cluster", "stages": 4, "cluster_warps": 8}
    some: Values = {**free, "token_schedule": "cluster", "stages": 1, "cluster_warps": 4}
    many: Values = {**some, "token_schedule": "leaves"}
    return Settings(
        constants={"leaves": 8, "block": block, "lanes": min(512, block)},
        launch={"sm90": ((16, few), (32, some), (None, many))},
    )


IMPLEMENTATION = Implementation(
    name="log_softmax_leaves",
    op="log_softmax",
    version=1,
    doc="The padded vocabulary is cut into equal leaves. A leaf is read once, in blocks: a running maximum and one sum "
    "per lane. Any rank can hold any leaf, and any program can compute it.",
    rounding=(
        "z = logit * fp32(1/temperature); columns from `vocab` on, and blocks past the leaf, count as -inf",
        "per block: m' = max(m, block); lane sum = lane sum * exp(m - m') + the tree of adjacent pairs over the "
        "block's exp(z - m') of that lane",
        "leaf sum: the tree of adjacent pairs over the lanes, times exp(m - row maximum)",
        "row sum: the balanced tree over the leaves; result = (z - row maximum) - log(row sum)",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    constants={
        "leaves": Field(
            type="int", choices=(1, 2, 4, 8, 16, 32), doc="equal contiguous parts of the padded vocabulary"
        ),
        "block": Field(type="int", choices=tuple(1 << k for k in range(4, 14)), doc="columns between running maxima"),
        "lanes": Field(type="int", choices=tuple(1 << k for k in range(4, 14)), doc="sums kept side by side in a leaf"),
    },
    launch={
        "sm90": {
            "schedule": Field(
                type="enum",
                choices=("leaves", "cluster"),
                free=True,
                doc="of every column of whole rows; leaves: one kernel sums leaves and another writes; cluster: the "
                "programs of a cluster hold a row, a leaf each, until they write it (where up to eight leaves fit)",
            ),
            "token_schedule": Field(
                type="enum",
                choices=("leaves", "cluster"),
                free=True,
                doc="of single columns of whole rows; leaves: one kernel sums leaves and another ends the rows; "
                "cluster: the programs of a cluster do both (where up to eight leaves fit)",
            ),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program (leaves)"),
            "finish_block": Field(
                type="int", choices=(512, 1024, 2048), free=True, doc="columns written by one program (leaves)"
            ),
            "stages": Field(
                type="int", choices=(1, 2, 3, 4), free=True, doc="blocks in use or being read ahead (leaves)"
            ),
            "cluster_warps": Field(type="int", choices=(4, 8), free=True, doc="warps in one program (cluster)"),
        }
    },
    tree=_tree,
    emulated=("log_softmax", "token_logprobs"),
    recommend=_recommend,
    problems=_problems,
)
