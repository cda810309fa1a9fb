"""Whether a value fits the field it is written for."""

from collections.abc import Mapping

from isoexec_compiler.registry import Field, Value, Values

TYPES: Mapping[str, type | tuple[type, ...]] = {"int": int, "float": float, "bool": bool, "enum": (str, int, float)}


def fault(value: Value, field: Field) -> str | None:
    """Why a value does not fit its field, as the end of a sentence, or None."""
    if not isinstance(value, TYPES[field.type]) or (isinstance(value, bool) and field.type != "bool"):
        names = {"int": "a whole number", "float": "a number", "bool": "`true` or `false`", "enum": "one of its words"}
        written = f'the string "{value}"' if isinstance(value, str) else show(value)
        return f"is {names[field.type]}, not {written}" + (f": {_listed(field)}" if field.choices else "")
    if field.choices and value not in field.choices:
        return f"is one of {_listed(field)}, not {show(value)}"
    if isinstance(value, str):
        return None
    if field.minimum is not None and value < field.minimum:
        return f"is at least {show(_like(value, field.minimum))}, not {show(value)}"
    if field.maximum is not None and value > field.maximum:
        return f"is at most {show(_like(value, field.maximum))}, not {show(value)}"
    if field.multiple_of is not None and value % field.multiple_of:
        return f"is a multiple of {field.multiple_of}, not {show(value)}"
    return None


def show(value: Value) -> str:
    """A value as a contract writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sound(values: Values, fields: Mapping[str, Field]) -> bool:
    """Whether the values fill the fields: none missing, none too many, each fitting."""
    return values.keys() == fields.keys() and not any(fault(values[name], fields[name]) for name in fields)


def _listed(field: Field) -> str:
    return ", ".join(map(show, field.choices))


def _like(value: Value, bound: float) -> Value:
    return int(bound) if isinstance(value, int) and float(bound).is_integer() else bound
