"""A setting that nothing reads."""

from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract, Selection
from isoexec_compiler.diagnostics import Diagnostic, suggest
from isoexec_compiler.facts import Settings, settings
from isoexec_compiler.registry import implementations

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
            near = None if (elsewhere := _elsewhere(group, name)) else suggest(name, group.fields)
            listed = ", ".join(group.fields) or "none"
            yield UNKNOWN_SETTING.at(
                group.placed.key(*group.path, name),
                f"{group.owner} has no {group.kind} `{name}`",
                note=None if near or elsewhere else f"there are: {listed}",
                help=elsewhere or (f"did you mean `{near}`?" if near else None),
            )


def _elsewhere(group: Settings, name: str) -> str | None:
    """Advice for a constant among launch parameters, or the reverse."""
    use = implementations().get(group.placed.use) if isinstance(group.placed, Selection) else None
    if use is None:
        return None
    if group.kind == "launch parameter" and name in use.constants:
        return f"`{name}` is a constant: it moves bits, so that no target and no number of rows may choose it"
    if group.kind == "constant" and any(name in fields for fields in use.launch.values()):
        return f"`{name}` is a launch parameter: write it under `launch`"
    return None
