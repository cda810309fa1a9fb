"""The contract as the author meant it: names and values bound to types, with the place each was written.

Spans never enter equality or a digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isoexec_compiler.registry import Values
from isoexec_compiler.source import Span

NOWHERE = Span(file="", line=1, column=1, end_line=1, end_column=1)


def _span() -> Span:
    return field(default=NOWHERE, compare=False, repr=False)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`config` holds the family's figures; `layers` the kind of every layer in order; `dtype` is bf16 or fp32."""

    family: str
    dtype: str
    config: Values
    layers: tuple[str, ...]
    span: Span = _span()
    config_spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeUse:
    side: str
    use: str
    version: str
    cases: tuple[str, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A site of the model graph as declared: `name` is the site's name, `op` and `attributes` what is computed there."""

    name: str
    op: str
    attributes: Values
    span: Span = _span()
    attribute_spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Launch parameters for calls of at most `max_rows` rows (None: any)."""

    max_rows: int | None
    parameters: Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One line of the composition: the implementation of a region in some cases, pinned to constants."""

    region: str
    cases: tuple[str, ...]
    use: str
    constants: Values
    launch: Mapping[str, tuple[Bucket, ...]]
    span: Span = _span()
    use_span: Span = _span()
    constant_spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)
    launch_spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyClaim:
    """The same bits at every size of `topology` (tp, ep: ints; sp: "off", "on"), for every pair of sides in `across`."""

    topology: str
    sizes: tuple[int | str, ...]
    across: tuple[str, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBitsClaim:
    region: str
    cases: tuple[str, ...]
    span: Span = _span()


@dataclass(frozen=True, slots=True, kw_only=True)
class StateClaim:
    state: str
    invalidated_by: tuple[str, ...]
    resume: str
    span: Span = _span()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToleranceClaim:
    """Largest absolute difference of log-probabilities (natural log) between two cases; 0 means zero differing bits."""

    cases: tuple[str, str]
    max_abs_logprob: float
    span: Span = _span()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiver:
    """One runtime obligation excused until a date (YYYY-MM-DD), with the reason."""

    obligation: str
    reason: str
    expires: str
    span: Span = _span()


Claim = TopologyClaim | EqualBitsClaim | StateClaim | ToleranceClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    name: str
    model: Model
    targets: tuple[str, ...]
    runtimes: tuple[RuntimeUse, ...]
    regions: tuple[Region, ...]
    composition: tuple[Selection, ...]
    claims: tuple[Claim, ...]
    waivers: tuple[Waiver, ...] = ()
    span: Span = _span()
