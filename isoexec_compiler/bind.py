"""From a document that conforms to the schema to a typed contract, every part with the place it was written.

Whole numbers become floats where the registries ask for a float, so that `1` and `1.0` are one contract. Names stay
names; a check resolves them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from isoexec_compiler import contract as c
from isoexec_compiler.registry import CASES, Field, Value, Values, families, implementations, ops
from isoexec_compiler.source import Document, Entry, Node, Sequence, to_data
from isoexec_compiler.source import Mapping as Table

MAX_ROWS = "max_rows"
NO_FIELDS: Mapping[str, Field] = {}


def bind(document: Document) -> c.Contract:
    """The contract of a conforming document. Binding itself finds no problem: what conforms can be bound."""
    root = document.root
    runtimes = tuple(map(_runtime, _table(root, "runtimes").entries))
    every = tuple(case for case in CASES if any(case in use.cases for use in runtimes))
    return c.Contract(
        name=_data(root, "contract"),
        model=_model(_table(root, "model")),
        targets=tuple(_data(root, "targets")),
        runtimes=runtimes,
        regions=tuple(map(_region, _table(root, "regions").entries)),
        composition=tuple(one for table in _tables(root, "composition") for one in _selections(table, every)),
        claims=tuple(map(_claim, _tables(root, "claims"))),
        waivers=tuple(map(_waiver, _tables(root, "waivers"))),
        span=root.span,
        node=root,
    )


def _model(table: Table) -> c.Model:
    family = families().get(_data(table, "family"))
    layers = _table(table, "layers")
    return c.Model(
        family=_data(table, "family"),
        dtype=_data(table, "dtype"),
        config=_values(_table(table, "config"), family.config if family else NO_FIELDS),
        layers=tuple(_data(layers, "pattern")) * _data(layers, "repeat"),
        span=table.span,
        node=table,
    )


def _runtime(entry: Entry) -> c.RuntimeUse:
    table = entry.value
    return c.RuntimeUse(
        side=entry.key,
        use=_data(table, "use"),
        version=_data(table, "version"),
        cases=tuple(_data(table, "cases")),
        span=entry.key_span,
        node=table,
    )


def _region(entry: Entry) -> c.Region:
    table = entry.value
    assert isinstance(table, Table)
    op = ops().get(_data(table, "op"))
    attributes = Table(entries=tuple(e for e in table.entries if e.key != "op"), span=table.span)
    return c.Region(
        name=entry.key,
        op=_data(table, "op"),
        attributes=_values(attributes, op.attributes if op else NO_FIELDS),
        span=entry.key_span,
        node=table,
    )


def _selections(table: Table, every: tuple[str, ...]) -> Iterator[c.Selection]:
    """One selection for each region that a line of the composition names; `every` is what `cases: all` means."""
    use = implementations().get(_data(table, "use"))
    cases = _data(table, "cases")
    for region in _items(table.get("region")):
        yield c.Selection(
            region=str(to_data(region)),
            cases=every if cases == "all" else tuple(cases),
            use=_data(table, "use"),
            constants=_values(_table(table, "constants"), use.constants if use else NO_FIELDS),
            launch={
                entry.key: tuple(
                    _bucket(bucket, use.launch.get(entry.key, NO_FIELDS) if use else NO_FIELDS)
                    for bucket in _items(entry.value)
                    if isinstance(bucket, Table)
                )
                for entry in _table(table, "launch").entries
            },
            span=region.span,
            node=table,
        )


def _bucket(table: Table, fields: Mapping[str, Field]) -> c.Bucket:
    parameters = Table(entries=tuple(e for e in table.entries if e.key != MAX_ROWS), span=table.span)
    return c.Bucket(max_rows=_data(table, MAX_ROWS), parameters=_values(parameters, fields))


def _claim(table: Table) -> c.Claim:
    if table.get("topology"):
        return c.TopologyClaim(
            topology=_data(table, "topology"),
            sizes=tuple(_data(table, "sizes")),
            across=tuple(_data(table, "across") or ()),
            span=table.span,
            node=table,
        )
    if table.get("equal_bits"):
        region, cases = _data(table, "equal_bits"), tuple(_data(table, "cases"))
        return c.EqualBitsClaim(region=region, cases=cases, span=table.span, node=table)
    if table.get("state"):
        return c.StateClaim(
            state=_data(table, "state"),
            invalidated_by=tuple(_data(table, "invalidated_by")),
            resume=_data(table, "resume"),
            span=table.span,
            node=table,
        )
    first, second = _data(table, "tolerance")
    difference = float(_data(table, "max_abs_logprob"))
    return c.ToleranceClaim(cases=(first, second), max_abs_logprob=difference, span=table.span, node=table)


def _waiver(table: Table) -> c.Waiver:
    return c.Waiver(
        obligation=_data(table, "obligation"),
        reason=_data(table, "reason"),
        expires=_data(table, "expires"),
        span=table.span,
        node=table,
    )


def _values(table: Table, fields: Mapping[str, Field]) -> Values:
    return {entry.key: _value(to_data(entry.value), fields.get(entry.key)) for entry in table.entries}


def _value(value: Any, field: Field | None) -> Value:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and field is not None and field.type == "float" else value


def _data(node: Node | None, key: str) -> Any:
    """The plain value under a key; None where the key is absent."""
    value = node.get(key) if isinstance(node, Table) else None
    return None if value is None else to_data(value)


def _table(table: Table, key: str) -> Table:
    value = table.get(key)
    return value if isinstance(value, Table) else Table(entries=(), span=table.span)


def _items(node: Node | None) -> tuple[Node, ...]:
    """The items of a sequence; anything else alone."""
    return node.items if isinstance(node, Sequence) else (node,) if node is not None else ()


def _tables(table: Table, key: str) -> tuple[Table, ...]:
    return tuple(item for item in _items(table.get(key)) if isinstance(item, Table))
