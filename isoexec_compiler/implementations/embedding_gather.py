"""Embedding rows copied; shards of the vocabulary joined by bits."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    block = min(2048, 1 << (int(attributes["width"]) - 1).bit_length())
    return Settings(launch={"sm90": ((None, {"block": block, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="embedding_gather",
    op="embedding",
    version=1,
    doc="Rows are moved, not computed: a rank writes +0 for ids it does not hold, and ranks are joined by integer OR, "
    "because a sum would turn -0.0 into +0.0.",
    rounding=("none: rows are copied bit for bit",),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "block": Field(
                type="int", choices=(64, 128, 256, 512, 1024, 2048), free=True, doc="columns in one program"
            ),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("embedding",),
    recommend=_recommend,
)
