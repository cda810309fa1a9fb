"""Random inputs for the reader: bytes, documents that are valid by construction, and mutants of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.case_directories import case_directories, contract_of

TOKENS = [
    *"{}[],:?-#&*!|>'\"%@`\\~ \t\n\r",
    *(
        ": ",
        "- ",
        "? ",
        "\n  ",
        "\n---\n",
        "\n...\n",
        "<<: ",
        "&a ",
        "*a",
        "!!str ",
        "!x ",
        "%YAML 1.2\n",
        "%TAG ! x\n",
    ),
    *("|2-\n", ">+\n", "''", '""', "\\u0041", "\\ud83d", "\\x", "\r\n", "\0", "\x1b[0m", "\x7f", "\x85", "\u2028"),
    *("\ufeff", "\u00a0", "\u200b", "\u202e", "e\u0301", "é", "日本", "😀", "\ufffe", "\U0010ffff"),
    *("no", "null", "true", "~", "1e-6", "010", "0o17", "0x1F", "1:30", "12_000", ".inf", "-.NaN", "1e999", "9" * 25),
    *(
        "2020-01-01",
        "NaN",
        "-0",
        "-0.0",
        "1.",
        ".5",
        "+1",
        "key",
        "a: ",
        "a: 1",
        "[1, 2]",
        "{a: b}",
        "[" * 40,
        "- " * 40,
    ),
]
WORDS = ["a", "b_1", "region", "use", "no", "on", "x y", "1", "", "é", "it's", "a#b", "a: b", "- a", "true", "{{ x }}"]


def seeds() -> list[bytes]:
    """Contracts small enough to mutate by the thousand: those of the cases and those people read."""
    contracts = [path.read_bytes() for path in sorted((Path(__file__).parents[2] / "contracts").glob("*.yaml"))]
    small = 20_000
    cases = [contract_of(case)[0] for case in case_directories()]
    return [data for data in cases if len(data) < small] + [data[:small] for data in contracts]


def value(random: Random, depth: int = 0) -> Any:
    """A plain value, nested at most a few levels."""
    kind = random.randrange(8 if depth < 4 else 5)
    match kind:
        case 0:
            return random.choice([None, True, False])
        case 1:
            return random.choice([0, -1, 10, 2**63 - 1, -(2**63), random.getrandbits(20)])
        case 2:
            return random.choice([0.0, -0.0, 1e-6, 1e300, 5e-324, random.random(), random.uniform(-1e9, 1e9)])
        case 3 | 4:
            return random.choice(WORDS)
        case 5:
            return [value(random, depth + 1) for _ in range(random.randrange(4))]
        case _:
            return mapping(random, depth + 1)


def mapping(random: Random, depth: int = 0) -> dict[str, Any]:
    """A mapping of identifiers to plain values."""
    return {f"k{random.randrange(30)}": value(random, depth) for _ in range(random.randrange(5))}


def write(random: Random, data: Any, indent: int = 0) -> str:
    """YAML for `data`, in a style chosen anew for every node."""
    block = random.random() < 0.7
    pad = "\n" + " " * indent
    step = random.choice([1, 2, 4])
    if isinstance(data, dict) and data and block:
        return "".join(f"{pad}{key}: {write(random, item, indent + step)}" for key, item in data.items())
    if isinstance(data, list) and data and block:
        return "".join(f"{pad}- {write(random, item, indent + 2)}" for item in data)
    if isinstance(data, dict):
        return "{" + ", ".join(f"{key}: {json.dumps(item, ensure_ascii=False)}" for key, item in data.items()) + "}"
    return json.dumps(data, ensure_ascii=False) + random.choice(["", "", "  # comment"])


def mutant(random: Random, data: bytes) -> bytes:
    """`data` after a few random edits."""
    for _ in range(random.choice([1, 1, 2, 3, 8])):
        data = random.choice(EDITS)(random, data)
    return data


def arbitrary(random: Random) -> bytes:
    """Random tokens, or random bytes."""
    if random.random() < 0.2:
        return random.randbytes(random.randrange(60))
    return "".join(random.choice(TOKENS) for _ in range(random.randrange(30))).encode()


def _insert(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + random.choice(TOKENS).encode() + data[at:]


def _delete(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + data[at + random.choice([1, 1, 2, 10]) :]


def _flip(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data) + 1)
    return data[:at] + bytes(byte ^ (1 << random.randrange(8)) for byte in data[at : at + 1]) + data[at + 1 :]


def _copy(random: Random, data: bytes) -> bytes:
    start, end, at = sorted(random.randrange(len(data) + 1) for _ in range(3))
    return data[:at] + data[start : min(end, start + 200)] + data[at:]


def _indent_line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    lines[at] = random.choice([b" " + lines[at], b"  " + lines[at], lines[at].lstrip(), lines[at][1:]])
    return b"\n".join(lines)


def _repeat_line(random: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
    return b"\n".join(lines)


def _truncate(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


Edit = Callable[[Random, bytes], bytes]
EDITS: list[Edit] = [_insert, _insert, _insert, _delete, _flip, _copy, _indent_line, _repeat_line, _truncate]
