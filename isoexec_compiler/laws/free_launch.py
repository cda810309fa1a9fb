"""No free launch parameter moves a bit: every bucket's values at every number of rows, then the declared choices."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from isoexec_compiler import control
from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.registry import Value, Values, implementations
from isoexec_compiler.subject import Subject, outputs_differing
from isoexec_compiler.trial import Call

SIZES = (1, 17, 257)
PATIENCE = 20.0
Expected = dict[tuple[int, str], tuple[Call, tuple[Any, ...]]]


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return any(parameters for _, parameters in kernel.free_launch)


def _tables(kernel: Kernel, seed: int) -> Iterator[Values]:
    """Each bucket's parameters, then each with one parameter changed to each declared choice, in a seeded order, but
    what no contract may say."""
    buckets = [parameters for _, parameters in kernel.free_launch]
    seen: list[Values] = []
    changed: list[Values] = []
    use = implementations()[kernel.implementation]
    fields = use.launch[kernel.target]
    for bucket in buckets:
        for name in bucket:
            changed += [{**bucket, name: choice} for choice in _choices(fields[name])]
    random.Random(seed).shuffle(changed)
    for parameters in (*buckets, *changed):
        unsound = any(use.launch_problems(kernel.attributes, kernel.constants, {**kernel.bit_launch, **parameters}, 1))
        if parameters not in seen and not unsound:
            seen.append(parameters)
            yield parameters


def _choices(field: object) -> tuple[Value, ...]:
    choices = getattr(field, "choices", ())
    low, high = getattr(field, "minimum", None), getattr(field, "maximum", None)
    return choices or (tuple(range(int(low), int(high) + 1)) if low is not None and high is not None else ())


def _examine(subject: Subject) -> Finding:
    finding, known = Finding(), subject.rows()
    drawn = {rows: subject.draw(rows) for rows in SIZES if rows in known}
    expected: Expected = {
        (rows, name): (call, subject.run(name, call))
        for rows, draw in drawn.items()
        for name, call in subject.calls(rows, draw).items()
    }
    for (rows, name), (call, result) in expected.items():
        if rows > 1:
            control.wrong_order(subject, finding, name, call, result)
    declared = list(_tables(subject.kernel, subject.seed))
    tried = 0
    for number, parameters in enumerate(declared):
        if subject.late() and number >= len(subject.kernel.free_launch):
            break
        module = subject.relaunched(((None, parameters),))
        try:
            with _limit(PATIENCE):
                differing = _differing(subject, module, expected)
        except Exception as error:  # whatever the compiler or the device says of parameters it cannot run
            finding.refused[" ".join(f"{k}={v}" for k, v in parameters.items())] = f"{type(error).__name__}: {error}"[
                :120
            ]
            continue
        finding.differing += differing
        finding.compared += sum(out.numel() for _, result in expected.values() for out in result)
        tried += 1
    for rows, draw in drawn.items():
        if rows > 1:
            finding.fired += draw.fired
    finding.domain = {"rows": list(drawn), "launches": tried, "declared": len(declared)}
    return finding


def _differing(subject: Subject, module: ModuleType, expected: Expected) -> int:
    return sum(
        outputs_differing(subject.run(name, call, module=module), result)
        for (_, name), (call, result) in expected.items()
    )


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError within when `seconds` pass: some tiles take the assembler minutes. Main thread only."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not compiled and run in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


LAW = Law(
    name="free_launch",
    doc="Every bucket's launch parameters at every number of rows, and single changes over the declared choices, give "
    "the bits of the contract's own launch.",
    backs=("kernel", "tolerance"),
    applies=_applies,
    examine=_examine,
)
