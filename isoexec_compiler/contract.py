"""The contract as the author meant it: names and values bound to types, with the place each was written.

Places never enter equality or a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isoexec_compiler.registry import Values
from isoexec_compiler.source import Mapping as Table
from isoexec_compiler.source import Node, Sequence
from isoexec_compiler.span import Span

NOWHERE = Span(file="", line=1, column=1, end_line=1, end_column=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Something written at `span`; `node` is its source, in which parts are found by key and index."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)
    node: Node | None = field(default=None, compare=False, repr=False)

    def at(self, *path: str | int) -> Span:
        """Where the value at `path` stands, or the nearest enclosing part that was written."""
        return self._walk(path, keys=False)

    def key(self, *path: str | int) -> Span:
        """Where the key at `path` stands, or the nearest enclosing part that was written."""
        return self._walk(path, keys=True)

    def _walk(self, path: tuple[str | int, ...], *, keys: bool) -> Span:
        node, span = self.node, self.span
        for step in path:
            if isinstance(node, Table) and isinstance(step, str):
                entry = node.entry(step)
                if entry is None:
                    break
                node, span = entry.value, entry.key_span if keys else entry.value.span
            elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
                node = node.items[step]
                span = node.span
        return span


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Placed):
    """`config` holds the family's figures; `layers` the kind of every layer in order; `dtype` is bf16 or fp32."""

    family: str
    dtype: str
    config: Values
    layers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUse(Placed):
    """The framework of one side. `cases` are those it runs."""

    side: str
    use: str
    version: str
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region(Placed):
    """A site of the model graph as declared: its name, and the op and attributes of what is computed there."""

    name: str
    op: str
    attributes: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Launch parameters for calls of at most `max_rows` rows (None: any)."""

    max_rows: int | None
    parameters: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection(Placed):
    """The implementation of a region in some cases, pinned to constants. A line of the composition may make several."""

    region: str
    cases: tuple[str, ...]
    use: str
    constants: Values
    launch: Mapping[str, tuple[Bucket, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyClaim(Placed):
    """The same bits at every size of `topology` (tp, ep: ints; sp: "off", "on"), for each pair of sides in `across`."""

    topology: str
    sizes: tuple[int | str, ...]
    across: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBitsClaim(Placed):
    """The same bits of a region in every one of `cases`, although their selections differ."""

    region: str
    cases: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateClaim(Placed):
    """What ends the life of a state that outlives a call, and how it resumes."""

    state: str
    invalidated_by: tuple[str, ...]
    resume: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceClaim(Placed):
    """Largest absolute difference of log-probabilities (natural log) between two cases; 0 means zero differing bits."""

    cases: tuple[str, str]
    max_abs_logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver(Placed):
    """One runtime obligation excused until a date (YYYY-MM-DD), with the reason."""

    obligation: str
    reason: str
    expires: str


Claim = TopologyClaim | EqualBitsClaim | StateClaim | ToleranceClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract(Placed):
    """Everything a contract says."""

    name: str
    model: Model
    targets: tuple[str, ...]
    runtimes: tuple[RuntimeUse, ...]
    regions: tuple[Region, ...]
    composition: tuple[Selection, ...]
    claims: tuple[Claim, ...]
    waivers: tuple[Waiver, ...] = ()
