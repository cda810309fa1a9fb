"""Additions that Triton folds into a matrix product.

Where a product starts from a known zero and its only use is an addition, Triton makes the other summand the product's
accumulator. One addition in fp32 becomes part of a sum inside the tensor core, which truncates: another arithmetic than
the kernel says, and only in those of its launches that leave a single step of the product.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator

ZERO = re.compile(r"(%\S+) = arith\.constant dense<-?0\.0+e\+00>")
PRODUCT = re.compile(r"(%\S+) = tt\.dot \S+ \S+ (%[^\s,]+)")
ADDITION = re.compile(r"%\S+ = arith\.addf (%[^\s,]+), (%[^\s,]+) :.*")


def folded_additions(source: str) -> Iterator[str]:
    """The additions of a kernel, given as Triton's first text of it (`Variant.source`), that will be folded."""
    if "tt.dot" not in source:
        return
    text = _simplified(source)
    uses = Counter(re.findall(r"%[\w#:]+", text))
    zeros = set(ZERO.findall(text))
    products = {name for name, start in PRODUCT.findall(text) if start in zeros and uses[name] == 2}
    for found in ADDITION.finditer(text):
        if products & set(found.groups()):
            yield found[0]


def _simplified(source: str) -> str:
    """What Triton looks at when it folds: functions inlined, loops of one step gone."""
    from triton._C.libtriton import ir, nvidia, passes

    context = ir.context()
    ir.load_dialects(context)
    nvidia.load_dialects(context)
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(source)
        file.flush()
        module = ir.parse_mlir_module(file.name, context)
    module.context = context
    manager = ir.pass_manager(context)
    passes.common.add_inliner(manager)
    passes.common.add_canonicalizer(manager)
    manager.run(module, "simplified")
    return str(module)
