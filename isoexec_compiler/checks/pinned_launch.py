"""A launch parameter that moves bits and follows the number of rows."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, Label
from isoexec_compiler.facts import lines
from isoexec_compiler.registry import implementations

PINNED_LAUNCH = Code(
    id="K207",
    title="bits follow the number of rows",
    manual="""
Two buckets of one launch table differ in a parameter that moves bits, such as the K block of a matmul or the warps of a
sum. A row would get other bits in a large batch than in a small one.

    launch:
      sm90:
        - {max_rows: 64, block_m: 16, block_k: 128}
        - {block_m: 128, block_k: 64}

Give every bucket the same value. Parameters that laws have shown to move no bit may differ; the implementation's file
marks them `free`.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every bucket has the first one's value of each parameter that is not free."""
    for selection in lines(contract):
        use = implementations().get(selection.use)
        for target, buckets in selection.launch.items() if use else ():
            fields = use.launch.get(target, {})  # type: ignore[union-attr]
            pinned = [name for name, field in fields.items() if not field.free]
            first = buckets[0].parameters
            for i, bucket in enumerate(buckets[1:], 1):
                for name in pinned:
                    if name in first and name in bucket.parameters and bucket.parameters[name] != first[name]:
                        yield PINNED_LAUNCH.at(
                            selection.at("launch", target, i, name),
                            f"`{name}` moves bits and changes with the number of rows",
                            labels=(
                                Label(span=selection.at("launch", target, 0, name), text=f"{first[name]} up to here"),
                            ),
                            help=f"pin `{name}` to one value in every bucket",
                        )
