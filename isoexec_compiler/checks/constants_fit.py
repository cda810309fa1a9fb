"""Constants that do not fit the region they are for."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import selected

CONSTANTS_FIT = Code(
    id="K216",
    title="constants do not fit the region",
    manual="""
An implementation cannot compute this region with these constants, although each of them alone is allowed.

    regions:
      attn_out: {op: matmul, n: 1024, k: 2000, split: rows, out: model}
    composition:
      - {region: attn_out, cases: all, use: matmul_tree, constants: {leaves: 16, leaf_dtype: fp32}}

The message says what must divide what. Change the constants, or take another implementation.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The implementation has no objection to the attributes and constants."""
    for one in selected(contract):
        for reason in one.use.problems(one.region.attributes, one.selection.constants):
            yield CONSTANTS_FIT.at(
                one.selection.key("constants"),
                f"{one.use.name} for {one.region.name}: {reason}",
                labels=(Label(span=one.region.span, text="the region"),),
            )
