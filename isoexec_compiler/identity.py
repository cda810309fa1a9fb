"""The three identities: SHA-256 over canonical bytes of named facts.

A fact is a dotted name with a string, integer, boolean or float. The lock lists them all, so that anybody can recompute
a digest from the lock alone. Each preimage starts with its own line, `isoexec <identity> 1`.

semantic            IN: model family, dtype, figures and layers; regions with ops and attributes; cases.
                    OUT: implementations, file names, runtimes, claims.
numerical_policy    (per target) IN: the semantic digest; per kernel module its region's implementation, version,
                    constants and bit-moving launch parameters; the digest of its source with comments stripped and free
                    launch parameters masked; the sources of the support modules kernels import; which module runs each
                    region in each case; the claims. OUT: free launch parameters, adapters, runtimes.
deployment          (per target) IN: the numerical policy digest; free launch parameters; runtimes with versions; the
                    digest of every generated file that this target uses. OUT: compiled code, which `ptx.lock` seals.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from functools import cache

from isoexec_compiler.plan import Plan
from isoexec_compiler.registry import Value
from isoexec_compiler.render import Tree, environment, kernel_texts, masked
from isoexec_compiler.template_files import Templates

Facts = Mapping[str, Value]
# What can hold a `#` or a quote that is not one, and the brackets inside which a string is no statement. Each branch
# begins with a plain character: the search then skips to the next one quickly.
LEXEME = re.compile(
    r"""\"{3}(?:\\.|[^\\])*?\"{3}|'{3}(?:\\.|[^\\])*?'{3}|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'"""
    r"|#[^\n]*|[()\[\]{}]",
    re.DOTALL,
)
PREFIXES = frozenset(("", "r", "b", "u", "rb", "br"))
STATEMENT_END = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|$)")
CUT = "\0"


def canonical(value: object) -> bytes:
    """Sorted compact UTF-8 JSON of str, int, bool, float, lists and string-keyed maps.

    A float is written as {"f64": "<16 hex digits of its IEEE bits, big-endian>"}, so that 1 and 1.0 differ,
    -0.0 and 0.0 differ, and no decimal printing enters a digest. Raises TypeError for any other type, and ValueError
    for inf and nan.
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _plain(value: object) -> object:
    match value:
        case bool() | int() | str():
            return value
        case float():
            if value != value or value in (float("inf"), float("-inf")):
                raise ValueError("inf and nan have no canonical form")
            return {"f64": struct.pack(">d", value).hex()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case Mapping():
            if not all(isinstance(key, str) for key in value):
                raise TypeError("canonical maps have string keys")
            return {key: _plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no canonical form")


def digest(identity: str, facts: Mapping[str, object]) -> str:
    """`sha256:<hex>` of the identity's own first line and the canonical bytes of its facts."""
    preimage = f"isoexec {identity} 1\n".encode() + canonical(facts)
    return f"sha256:{hashlib.sha256(preimage).hexdigest()}"


def text_digest(text: str) -> str:
    """`sha256:<hex>` of a text's UTF-8 bytes."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


@cache
def normalised(source: str) -> str:
    """Python source without comments and docstrings: what of a kernel's text can move a bit.

    The rest stays as it is written, line by line: a tokeniser's own view of it differs between Python versions.
    """
    text, end = [], 0
    for start, stop in _remarks(source):
        text += [source[end:start], CUT]
        end = stop
    lines = "".join([*text, source[end:]]).splitlines()
    kept = (line.replace(CUT, "").rstrip() if CUT in line else line for line in lines)
    return "\n".join(line for line, old in zip(kept, lines, strict=True) if line or CUT not in old) + "\n"


def _remarks(source: str) -> Iterator[tuple[int, int]]:
    """Where comments and strings that stand alone as a statement begin and end."""
    depth = 0
    for lexeme in LEXEME.finditer(source):
        start, stop = lexeme.span()
        match source[start]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
            case "#":
                yield start, stop
            case _ if not depth and STATEMENT_END.match(source, stop):
                line = source.rfind("\n", 0, start) + 1
                prefix = source[line:start].lstrip()
                if prefix.lower() in PREFIXES and source[line - 2 : line] != "\\\n":
                    yield start - len(prefix), stop


def facts(plan: Plan, tree: Tree, templates: Templates) -> dict[str, Value]:
    """Every fact of the lock: the three identities' preimages and their digests."""
    found: dict[str, Value] = {"contract": plan.contract, "targets": " ".join(plan.targets)}
    found |= {f"semantic.{key}": value for key, value in plan.semantic.items()}
    for target in plan.targets:
        found |= {f"numerical_policy.{target}.{key}": value for key, value in _policy(plan, target, templates)}
        found |= {f"deployment.{target}.{key}": value for key, value in _deployment(plan, target)}
    found |= {f"files.{path}": text_digest(text) for path, text in tree.items()}
    return dict(sorted({**found, **identities(found)}.items()))


def identities(facts: Facts) -> dict[str, str]:
    """The digests that a lock's facts imply, by fact name: `identity.semantic`, `identity.<target>.deployment`, ..."""
    semantic = digest("semantic", _below("semantic.", facts))
    found = {"identity.semantic": semantic}
    targets = str(facts.get("targets", "")).split()
    for target in targets:
        others = tuple(f"{other}/" for other in targets if other != target)
        policy = digest("numerical_policy", {"semantic": semantic, **_below(f"numerical_policy.{target}.", facts)})
        files = {p: v for p, v in _below("files.", facts).items() if not p.startswith(others)}
        found[f"identity.{target}.numerical_policy"] = policy
        found[f"identity.{target}.deployment"] = digest(
            "deployment", {"numerical_policy": policy, "files": files, **_below(f"deployment.{target}.", facts)}
        )
    return found


def _below(prefix: str, facts: Facts) -> dict[str, Value]:
    return {key.removeprefix(prefix): value for key, value in facts.items() if key.startswith(prefix)}


def _policy(plan: Plan, target: str, templates: Templates) -> Iterator[tuple[str, Value]]:
    yield from ((f"claims.{key}", value) for key, value in plan.claims.items())
    env = environment(templates)
    kernels: list[str] = []
    for kernel in plan.kernels:
        if kernel.target != target:
            continue
        name = f"kernels.{kernel.module}"
        yield f"{name}.use", kernel.implementation
        yield f"{name}.version", kernel.version
        yield from ((f"{name}.constants.{key}", value) for key, value in kernel.constants.items())
        yield from ((f"{name}.launch.{key}", value) for key, value in kernel.bit_launch.items())
        texts = kernel_texts(plan.contract, masked(kernel), templates, env)
        yield f"{name}.source", text_digest("".join(normalised(texts[path]) for path in sorted(texts)))
        kernels += texts.values()
    for module, text in templates.support(kernels).items():
        yield f"support.{module}.source", text_digest(normalised(text))
    for case, table in sorted(plan.modules(target).items()):
        yield from ((f"cases.{case}.{region}", module) for region, module in sorted(table.items()))


def _deployment(plan: Plan, target: str) -> Iterator[tuple[str, Value]]:
    for binding in plan.bindings:
        yield f"runtimes.{binding.side}.use", binding.runtime
        yield f"runtimes.{binding.side}.version", binding.version
    for kernel in plan.kernels:
        if kernel.target == target:
            yield from (
                (f"kernels.{kernel.module}.launch.{_rows(rows)}.{key}", value)
                for rows, parameters in kernel.free_launch
                for key, value in parameters.items()
            )


def _rows(rows: int | None) -> str:
    return "rows_any" if rows is None else f"rows_{rows}"
