"""What a law is, and what it finds. Each file of `isoexec_compiler/laws/` holds one, as `LAW`."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject

BITWISE, DIFFERS, BLIND, WITHIN, BEYOND = "bitwise", "differs", "blind", "within bound", "beyond bound"


@dataclass(slots=True, kw_only=True)
class Finding:
    """What one law found on one kernel, filled as the law proceeds.

    domain     what was looked at, by name
    compared   elements compared bit by bit, or with the float64 reference
    differing  elements that differ in any bit
    fired      hazards that the inputs really held, counted
    control    what was compared on purpose with something wrong, and how many elements differed
    refused    configurations that the device or the compiler could not run, with the first reason
    error      largest relative error against float64, with its bound; None for laws about bits
    """

    domain: dict[str, object] = field(default_factory=dict)
    compared: int = 0
    differing: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    control: str = ""
    control_differing: int = 0
    refused: dict[str, str] = field(default_factory=dict)
    error: float | None = None
    bound: float | None = None

    @property
    def outcome(self) -> str:
        """`bitwise` only when something was compared, nothing differed, and the control was seen to differ."""
        if not self.compared or not self.control_differing or not all(self.fired.values()):
            return BLIND
        if self.error is not None and self.bound is not None:
            return WITHIN if self.error <= self.bound else BEYOND
        return DIFFERS if self.differing else BITWISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """One property of a kernel that only running it can show.

    backs    kinds of claims that need this law: `kernel` is every kernel's own, the others are a contract's claims
    applies  whether the law says something of a kernel of a plan
    """

    name: str
    doc: str
    backs: tuple[str, ...]
    applies: Callable[[Kernel, Plan], bool]
    examine: Callable[[Subject], Finding]


@cache
def laws() -> Mapping[str, Law]:
    """Every law by name, in order of name."""
    package = importlib.import_module("isoexec_compiler.laws")
    found = [
        importlib.import_module(f"{package.__name__}.{m.name}").LAW for m in pkgutil.iter_modules(package.__path__)
    ]
    return {law.name: law for law in sorted(found, key=lambda law: law.name)}


def always(kernel: Kernel, plan: Plan) -> bool:
    """For laws about every kernel."""
    return True


def on_gpu(kernel: Kernel, plan: Plan) -> bool:
    """For laws about kernels that a GPU launches."""
    return kernel.target != "cpu"
