# SPDX-License-Identifier: Apache-2.0
"""Whether the objects in memory are the ones in the files: code compared with a fresh compilation of the source.

A file's digest says nothing about a function that was replaced after the import. Here each function, class and literal
constant of a module is compared with what its file would define now.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .operators import OPERATORS
from .regions import BOUND


def _code(thing: Any) -> CodeType | None:
    """The code behind a function, plain or decorated, a method, a property or a Triton kernel; None for the rest."""
    for attribute in ("__func__", "fget", "fn", "__wrapped__"):
        thing = getattr(thing, attribute, thing)
    return getattr(thing, "__code__", None)


def _differences(name: str, expected: CodeType, actual: Any) -> Iterator[str]:
    if inspect.isclass(actual):
        for code in expected.co_consts:
            if isinstance(code, CodeType) and not code.co_name.startswith("<") and code.co_name in vars(actual):
                yield from _differences(f"{name}.{code.co_name}", code, vars(actual)[code.co_name])
    elif _code(actual) != expected:
        yield f"{name} is not the one in its file"


def module_problems(module: ModuleType) -> list[str]:
    """Sentences on each function, class or literal constant of `module` that differs from its file's."""
    text = Path(module.__file__ or "").read_text(encoding="utf-8")
    compiled = compile(text, module.__file__ or "", "exec", dont_inherit=True)
    problems = []
    for code in compiled.co_consts:
        if isinstance(code, CodeType) and not code.co_name.startswith("<"):
            actual = vars(module).get(code.co_name)
            problems += _differences(f"{module.__name__}.{code.co_name}", code, actual)
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            try:
                value = ast.literal_eval(statement.value)
            except ValueError:
                continue
            name = statement.targets[0].id
            if vars(module).get(name, problems) != value:
                problems.append(f"{module.__name__}.{name} is not the constant in its file")
    return problems


def table_problems(modules: dict[str, ModuleType]) -> list[str]:
    """Sentences on entries of the region table that are not the functions of the region's kernel file."""
    problems = []
    for region, module in modules.items():
        for operator in OPERATORS.values():
            function = getattr(module, operator.function, None)
            if BOUND.table.get((region, operator.function)) is not function:
                problems.append(f"{region}: the bound {operator.function} is not the one of {module.__name__}")
    return problems


def table_digest() -> str:
    """SHA-256 of the byte code of every bound function and of what is nested in it, without file names and lines."""
    seal = hashlib.sha256()
    for (region, name), function in sorted(BOUND.table.items()):
        seal.update(f"{region}.{name}\n".encode())
        _feed(seal, _code(function))
    return f"sha256:{seal.hexdigest()}"


def _feed(seal: Any, code: CodeType | None) -> None:
    if code is None:
        return
    seal.update(code.co_code)
    seal.update(repr((code.co_names, code.co_varnames, code.co_freevars)).encode())
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            _feed(seal, constant)
        else:
            seal.update(repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant).encode())


def instance_problems(name: str, instance: Any, expected: type) -> list[str]:
    """Sentences on a framework's module that should be an adapter's and is not, or is shadowed or hooked."""
    if type(instance) is not expected:
        return [f"{name} is a {type(instance).__qualname__}, not the adapter's {expected.__qualname__}"]
    problems = [
        f"{name}.{shadowed} is shadowed on the instance" for shadowed in ("forward",) if shadowed in vars(instance)
    ]
    if getattr(instance, "_forward_pre_hooks", None) or getattr(instance, "_forward_hooks", None):
        problems.append(f"{name} carries forward hooks")
    return problems
