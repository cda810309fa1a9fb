"""The expert rows of a token, added in the order of its slots and rounded once."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"block": 512, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="expert_combine_slots",
    op="expert_combine",
    version=1,
    doc=(
        "The slots' order is the router's and never a rank's: expert parallelism moves rows and no bit. Nodes of ranks "
        "that share the experts' width are added first, pairwise by ascending rank."
    ),
    rounding=(
        "ranks that share the width: their nodes by the balanced tree in fp32",
        "weighted: each row * weight in fp32",
        "rows added in fp32 in order of the slots, from the first; rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "block": Field(type="int", choices=(256, 512, 1024, 2048), free=True, doc="columns in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("expert_combine", "combine"),
    recommend=_recommend,
)
