# SPDX-License-Identifier: Apache-2.0
"""Every region behind one opaque torch operator for each op: eager and compiled code run the very same function.

`ops.rms_norm(x, weight, "attn_norm")` runs the function `rms_norm` of the kernel file of the region `attn_norm`. Inside
the operator the ledger counts, and a tap, when set, sees each result.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from . import package
from .ledger import Ledger
from .operators import OPERATORS

Tap = Callable[[str, str, list[Any], Any], None]


@dataclass(slots=True, kw_only=True)
class Bound:
    """What is bound in this process: `table[region, function]` is the function an operator calls."""

    side: str = ""
    target: str = ""
    table: dict[tuple[str, str], Callable[..., Any]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    tap: Tap | None = None
    depth: int = 0


BOUND = Bound()


def run(name: str, *arguments: Any) -> Any:
    """Run an operator's function here and now: inside its torch operator, or directly where it keeps state."""
    operator = OPERATORS[name]
    values = [a for a in arguments if not isinstance(a, str)]
    names = [a for a in reversed(arguments) if isinstance(a, str)]  # the region that runs, then one that it contains
    BOUND.depth += 1
    try:
        named = {key: values.pop() for key in reversed(operator.keywords)}
        result = BOUND.table[names[0], operator.function](*values, **named)
    finally:
        BOUND.depth -= 1
    for region, part in zip(names, result if len(names) > 1 else (result,), strict=True):
        if operator.whole:
            BOUND.ledger.ran(region)
        if BOUND.tap is not None:
            BOUND.tap(region, name, values, part)
    return result


def call(name: str, *arguments: Any) -> Any:
    """What `ops.name` is: the operator where somebody traces or watches operators, its function at once elsewhere."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return getattr(registered, name)(*arguments)
    return run(name, *arguments)


def _differentiable(name: str, *arguments: Any) -> Any:
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return run(name, *arguments)  # the kernel file's autograd function records itself
    with torch._C._AutoDispatchBelowAutograd():
        return getattr(registered, name)(*arguments)


_LIBRARY = torch.library.Library(f"isoexec_{package.NAME}", "DEF")
registered = getattr(torch.ops, f"isoexec_{package.NAME}")
_TRACEABLE = {name: operator for name, operator in OPERATORS.items() if operator.fake is not None}
for _name, _operator in _TRACEABLE.items():
    _LIBRARY.define(f"{_name}({_operator.arguments}, str region) -> {_operator.result}")
    _LIBRARY.impl(_name, partial(run, _name), "CompositeExplicitAutograd")
    _LIBRARY.impl(_name, partial(_differentiable, _name), "Autograd")
    torch.library.register_fake(f"isoexec_{package.NAME}::{_name}", _operator.fake, lib=_LIBRARY)
ops = SimpleNamespace(**{name: partial(call, name) for name in _TRACEABLE})


def bind(side: str, target: str) -> None:
    """Fill the table for one side. Raises ValueError when its cases would run a region from different files."""
    contract = package.load()
    BOUND.side, BOUND.target = side, target
    for region in contract.contract["regions"]:
        modules = {contract.kernel(target, region, case) for case in contract.cases(side)}
        if len(modules) != 1:
            raise ValueError(f"{side} runs {region} from {len(modules)} kernel files, this adapter can bind one")
        (module,) = modules
        for operator in OPERATORS.values():
            if hasattr(module, operator.function):
                BOUND.table[region, operator.function] = getattr(module, operator.function)
    if target != "cpu":
        from .quick_launch import quicken

        for name, module in list(sys.modules.items()):
            if name.startswith(f"{package.NAME}."):
                quicken(module)


@contextmanager
def tapped(tap: Tap) -> Iterator[None]:
    """Show every result of every region to `tap(region, operator, arguments, result)` while the context is open."""
    before, BOUND.tap = BOUND.tap, tap
    try:
        yield
    finally:
        BOUND.tap = before
