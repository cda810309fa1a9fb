"""Rotary from a table of cosines and sines that the generated code computes itself."""

from __future__ import annotations

from collections.abc import Iterator

from isoexec_compiler.registry import Field, Implementation, Settings, Values


def _problems(attributes: Values, constants: Values) -> Iterator[str]:
    if int(attributes["rotary_dim"]) > int(attributes["head_dim"]):
        yield f"rotary_dim {attributes['rotary_dim']} exceeds head_dim {attributes['head_dim']}"


def _recommend(attributes: Values) -> Settings:
    fit = max(1, 2048 // int(attributes["head_dim"]))
    rows = min(16, 1 << (fit.bit_length() - 1))
    # Few heads of tokens are served sooner by more programs; many need each token's angles fewer times.
    return Settings(
        launch={"sm90": ((16384, {"rows": rows, "num_warps": 4}), (None, {"rows": 2 * rows, "num_warps": 4}))}
    )


IMPLEMENTATION = Implementation(
    name="rotary_table",
    op="rotary",
    version=1,
    doc="Angles and the table in float64 from exact frequencies and additions and multiplications only, so that no "
    "mathematical library and no framework enters it.",
    rounding=(
        "frequency theta**(-2i/rotary_dim), correctly rounded to float64; angle = position * frequency in float64",
        "cosine and sine of the angle in float64, rounded to fp32: the table",
        "a*cos, b*sin, b*cos, a*sin in fp32, then their difference and sum in fp32, rounded once to the model dtype",
    ),
    dtypes={"sm90": ("bf16", "fp32"), "cpu": ("bf16", "fp32")},
    launch={
        "sm90": {
            "rows": Field(type="int", choices=(1, 2, 4, 8, 16, 32), free=True, doc="heads of tokens in one program"),
            "num_warps": Field(type="int", choices=(1, 2, 4, 8), free=True, doc="warps in one program"),
        }
    },
    emulated=("rotary",),
    recommend=_recommend,
    problems=_problems,
)
