"""A kernel computes its op: its results lie within rounding of the float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding, Law, always
from isoexec_compiler.subject import Subject

if TYPE_CHECKING:
    import torch

ROWS = 64
# One rounding to bfloat16 errs by at most 2**-9 of a value; fp32 sums of some thousand terms by about 1e-6.
BOUND = {"bfloat16": 2.0**-8, "float32": 1e-5}
DROPPED = {"bfloat16": 3, "float32": 14}


def _examine(subject: Subject) -> Finding:
    import torch

    finding = Finding(error=0.0, bound=1.0, control="the result with its last bits dropped")
    rows = max(size for size in subject.rows() if size <= ROWS)
    errors: dict[str, str] = {}
    for name, call in subject.calls(rows, subject.draw(kinds=("normal",))).items():
        if call.truth is None:
            continue
        for found, truth in zip(subject.run(name, call), call.truth(), strict=True):
            if not found.is_floating_point():
                finding.differing += int((found != truth).sum())
                continue
            kind = str(found.dtype).removeprefix("torch.")
            bound = call.bound if call.bound and found.dtype != torch.float32 else BOUND[kind]
            error = _error(found, truth)
            errors[name] = f"{error:.2e} of {bound:.2e}"
            finding.error = max(finding.error or 0.0, error / bound)
            finding.compared += found.numel()
            finding.control_differing += int(_error(_coarse(found), truth) > bound) * found.numel()
    finding.domain = {"rows": rows, "relative L2 error and its bound": errors}
    return finding


def _error(found: torch.Tensor, truth: torch.Tensor) -> float:
    known = truth.isfinite()
    if not bool((found[~known].double() == truth[~known]).all()):
        return float("inf")
    difference = (found.double() - truth)[known]
    size = float(truth[known].norm())
    error = float(difference.norm()) / size if size else float(difference.norm())
    return error if error == error else float("inf")


def _coarse(found: torch.Tensor) -> torch.Tensor:
    from isoexec_compiler.bits import words

    mask = -1 << DROPPED[str(found.dtype).removeprefix("torch.")]
    return (words(found) & mask).view(found.dtype)


LAW = Law(
    name="accuracy",
    doc="Results on normal inputs lie within rounding of the float64 reference (error in units of the bound).",
    backs=("kernel",),
    applies=always,
    examine=_examine,
)
