# SPDX-License-Identifier: Apache-2.0
"""Names every operation that computes floats outside a bound region, while a model's forward runs eagerly.

Moving bytes is not computing: views, copies of one dtype, gathers and selections pass. What is left is a region that
fell back, or arithmetic that no contract covers. Compiled code shows only what it calls, not what it fused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from . import package
from .regions import BOUND

_NAMES = """
_local_scalar_dense _reshape_alias _unsafe_view alias all_to_all allgather arange as_strided broadcast cat clone
constant_pad_nd contiguous copy copy_ detach empty empty_like empty_strided expand fill_ flatten full full_like gather
index index_copy_ index_put_ index_select lift_fresh masked_fill masked_fill_ new_empty new_empty_strided new_zeros ones
permute repeat reshape scatter select set_ slice split split_with_sizes squeeze stack t transpose unbind unsafe_split
unflatten unsqueeze view where zero_ zeros zeros_like
"""
MOVES = frozenset(_NAMES.split())


@dataclass(slots=True)
class Findings:
    """`outside[case, operation]` counts what ran outside every region; `on` says whether forwards are watched."""

    on: bool = False
    outside: Counter[tuple[str, str]] = field(default_factory=Counter)


FINDINGS = Findings()


def _floats(values: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _moves(operation: Any, arguments: Any, result: Any) -> bool:
    """Whether an operation only moves bytes: no float comes out, or by a known move without a change of dtype."""
    made = _floats(result)
    name = operation.overloadpacket.__name__
    namespace = operation.namespace
    if not made or namespace == f"isoexec_{package.NAME}" or namespace == "c10d" or name.startswith("all_gather"):
        return True
    came = {t.dtype for t in _floats(arguments)}
    return name in MOVES | {"_to_copy"} and (not came or {t.dtype for t in made} <= came)


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if BOUND.depth == 0 and not _moves(func, (args, kwargs), result):
            FINDINGS.outside[BOUND.ledger.case, str(func)] += 1
        return result


@contextmanager
def watching() -> Iterator[None]:
    """Watch the forward inside the context, if the audit is on."""
    if not FINDINGS.on:
        yield
        return
    with _Watch():
        yield


def report() -> dict[str, int]:
    """`case/operation`: how often it ran outside every region."""
    return {f"{case}/{name}": times for (case, name), times in sorted(FINDINGS.outside.items())}
