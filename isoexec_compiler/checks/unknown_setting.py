# SPDX-License-Identifier: Apache-2.0
"""A setting that nothing reads."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.facts import settings

UNKNOWN_SETTING = Code(
    id="K203",
    title="unknown setting",
    manual="""
A figure, attribute, constant or launch parameter is written that its family, op or implementation does not have.

    - {region: attn_norm, cases: all, use: rms_norm_rows, constants: {block: 1024}}

A setting that is ignored would look as if it pinned something. Correct or delete it; the help names the nearest one
there is.
""",
)


def check(contract: Contract) -> Iterator[Diagnostic]:
    """Every value must have a field."""
    for group in settings(contract):
        for name in group.values:
            if name in group.fields:
                continue
            near = suggest(name, group.fields)
            listed = ", ".join(group.fields) or "none"
            yield UNKNOWN_SETTING.at(
                group.placed.key(*group.path, name),
                f"{group.owner} has no {group.kind} `{name}`",
                note=None if near else f"there are: {listed}",
                help=f"did you mean `{near}`?" if near else None,
            )
