"""Random contracts: a kept one with a few of its parts replaced, dropped, renamed, swapped or repeated."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

from isoexec_compiler.registry import CASES, TARGETS, families, implementations, ops, runtimes
from isoexec_compiler.source import read, to_data
from tests.fuzz.mutate import value
from tests.update_contracts import CONTRACTS

Part = dict[str, Any] | list[Any]

NAMES = [
    *CASES,
    *TARGETS,
    *families(),
    *implementations(),
    *ops(),
    *runtimes(),
    *("all", "attention", "kv_cache", "engine", "off", "on", "exact", "weight_sync", "0.26.0", "2030-01-01", "import"),
]
KEYS = ["region", "cases", "use", "constants", "launch", "max_rows", "op", "width", "k", "leaves", "sinks", "waivers"]
NUMBERS = [0, 1, 2, 3, 4, 8, 16, 48, 64, 4096, -1, 2**40, 0.0, 0.5, 1.0, 1e-6, 1e300]


def kept() -> list[dict[str, Any]]:
    """The contracts that are kept in the repository, as plain data."""
    documents = [read(path.read_bytes(), path.name)[0] for path in sorted(CONTRACTS.glob("*.yaml"))]
    return [to_data(document.root) for document in documents if document]  # type: ignore[misc]


def mutant(random: Random, contract: dict[str, Any]) -> dict[str, Any]:
    """`contract` with one to four of its parts changed."""
    changed = copy.deepcopy(contract)
    for _ in range(random.choice([1, 1, 1, 2, 4])):
        random.choice(EDITS)(random, random.choice(list(_parts(changed))))
    return changed


def text(contract: dict[str, Any]) -> bytes:
    """A contract as text that both readers take."""
    return json.dumps(contract, indent=1).encode()


def _parts(part: Any) -> list[Part]:
    if not isinstance(part, dict | list) or not part:
        return []
    return [part, *(inner for item in (part.values() if isinstance(part, dict) else part) for inner in _parts(item))]


def _key(random: Random, part: Part) -> Any:
    return random.choice(list(part) if isinstance(part, dict) else range(len(part))) if part else None


def _replace(random: Random, part: Part) -> None:
    if part:
        part[_key(random, part)] = random.choice([random.choice(NAMES), random.choice(NUMBERS), value(random)])


def _nudge(random: Random, part: Part) -> None:
    numbers = [k for k in _keys(part) if type(part[k]) in (int, float)]
    if numbers:
        key = random.choice(numbers)
        part[key] = random.choice([part[key] * 2, part[key] // 2, part[key] + 1, -part[key], float(part[key])])


def _drop(random: Random, part: Part) -> None:
    if part:
        del part[_key(random, part)]


def _repeat(random: Random, part: Part) -> None:
    if isinstance(part, list):
        part.insert(random.randrange(len(part) + 1), copy.deepcopy(random.choice(part) if part else 1))
    else:
        part[random.choice([*KEYS, *part])] = copy.deepcopy(random.choice([*part.values(), 1]))


def _rename(random: Random, part: Part) -> None:
    if isinstance(part, dict) and part:
        old = random.choice(list(part))
        part[random.choice([*KEYS, *part, old[:-1] + "x"])] = part.pop(old)


def _swap(random: Random, part: Part) -> None:
    if part:
        a, b = _key(random, part), _key(random, part)
        part[a], part[b] = part[b], part[a]


def _keys(part: Part) -> list[Any]:
    return list(part) if isinstance(part, dict) else list(range(len(part)))


EDITS: list[Callable[[Random, Part], None]] = [_replace, _replace, _nudge, _nudge, _drop, _repeat, _rename, _swap]
