"""Sizes that a topology cannot have."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.layouts import topologies

SIZES = Code(
    id="K221",
    title="sizes of the wrong kind",
    manual="""
Tensor and expert parallelism have sizes that are powers of two, with 1 among them: 1 is what the others are compared
with. Sequence parallelism is `off` or `on`.

    - {topology: sp, sizes: [1, 2]}
    - {topology: tp, sizes: [3]}

Write powers of two from 1 for tp and ep, and `off`, `on` for sp.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Sizes are powers of two including 1, or off and on."""
    for claim in topologies(contract):
        words = claim.topology == "sp"
        for i, size in enumerate(claim.sizes):
            place = claim.at("sizes", i)
            if isinstance(size, str) != words:
                yield SIZES.at(
                    place, f"{claim.topology} has sizes {'off and on' if words else '1, 2, 4, ...'}, not {size}"
                )
            elif isinstance(size, int) and size & (size - 1):
                yield SIZES.at(place, f"{size} is not a power of two, so ranks cannot be summed pairwise")
        base = "off" if words else 1
        if base not in claim.sizes:
            yield SIZES.at(claim.at("sizes"), f"{base} is missing: it is what the other sizes are compared with")
