"""A setting that is not written."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic
from isoexec_compiler.facts import settings
from isoexec_compiler.registry import Field

MISSING_SETTING = Code(
    id="K202",
    title="missing setting",
    manual="""
A figure of the model, an attribute of an op, a constant or a launch parameter is not written.

    - {region: attn_out, cases: all, use: matmul_tree, constants: {leaves: 8}}     # no leaf_dtype

There are no defaults, because a default that changes in a later release would change bits that nobody touched. Write
the value; the help says what it means and what it may be. `isoexec init` writes recommended ones.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every field must have a value."""
    for group in settings(contract):
        for name in group.fields:
            if name in group.values:
                continue
            yield MISSING_SETTING.at(
                group.placed.key(*group.path),
                f"the {group.kind} `{name}` of {group.owner} is not written",
                help=f"`{name}`: {_meaning(group.fields[name])}",
            )


def _meaning(field: Field) -> str:
    choices = ", ".join(map(str, field.choices))
    return f"{field.doc}; one of {choices}" if choices else field.doc
