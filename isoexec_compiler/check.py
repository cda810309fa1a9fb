"""Whether what a contract says holds: every rule of `checks/`, each in a file of its own.

A rule's file declares its `Code` and `check(contract)`, and is found by being there. A rule passes over what another
reports, such as a name that does not resolve: one mistake is one problem.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache

from isoexec_compiler import checks
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic

Rule = Callable[[Contract], Iterator[Diagnostic]]


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, in order of its file's name."""
    names = sorted(module.name for module in pkgutil.iter_modules(checks.__path__))
    return tuple(importlib.import_module(f"{checks.__name__}.{name}").check for name in names)


def check(contract: Contract) -> tuple[Diagnostic, ...]:
    """Every problem that any rule finds."""
    return tuple(problem for rule in rules() for problem in rule(contract))
