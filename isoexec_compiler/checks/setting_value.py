"""A setting whose value does not fit its field."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.facts import settings
from isoexec_compiler.fields import fault
from isoexec_compiler.source import surprise

SETTING_VALUE = Code(
    id="K204",
    title="setting out of bounds",
    manual="""
The value of a figure, attribute, constant or launch parameter has the wrong type, is not among the choices, or is out
of range.

    - {region: attn_norm, cases: all, use: rms_norm_rows, launch: {sm90: {rows: 3, num_warps: 4}}}

The choices are those for which laws have run. Take one of them.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every value must fit its field."""
    for group in settings(contract):
        for name, value in group.values.items():
            field = group.fields.get(name)
            if field and (reason := fault(value, field)):
                near = suggest(value, map(str, field.choices)) if isinstance(value, str) else None
                advice = surprise(value) if isinstance(value, str) else None
                yield SETTING_VALUE.at(
                    group.placed.at(*group.path, name),
                    f"the {group.kind} `{name}` of {group.owner} {reason}",
                    note=f"`{name}`: {field.doc}",
                    help=f"did you mean `{near}`?" if near else advice,
                )
