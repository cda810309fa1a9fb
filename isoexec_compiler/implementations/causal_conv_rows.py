"""Causal convolution, each row from its last four inputs in one order."""

from __future__ import annotations

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _recommend(attributes: Values) -> Settings:
    return Settings(launch={"sm90": ((None, {"rows": 16, "block": 128, "num_warps": 4}),)})


IMPLEMENTATION = Implementation(
    name="causal_conv_rows",
    op="causal_conv",
    version=1,
    doc="Every row reads its own four inputs, from the batch or from the state of raw inputs, so a split moves no bit.",
    rounding=(
        "((x0 * w0 + x1 * w1) + x2 * w2) + x3 * w3 in fp32, each operation rounded; x3 is the row itself",
        "+ bias in fp32 where there is one",
        "s / (1 + exp(-s)), exp by the polynomial of `elementary`, the division correctly rounded",
        "rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16",), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16, 32), free=True, doc="rows in one program"),
            "block": Field(type="int", choices=(64, 128, 256, 512), free=True, doc="channels in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("causal_conv", "causal_conv_step"),
    recommend=_recommend,
)
