# SPDX-License-Identifier: Apache-2.0
"""An engine's collectives as opaque operators: compiled code and CUDA graphs hold them whole.

A process group goes by its name, as compiled code can hold no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.distributed_c10d import _resolve_process_group

from . import package
from .regions import ops, registered
from .tree_collectives import tree_all_reduce

_LIBRARY = torch.library.Library(f"isoexec_{package.NAME}", "FRAGMENT")


def operator(name: str, tensors: str, function: Callable[..., torch.Tensor]) -> Any:
    """`function(*tensors, region, group)` as an operator that takes the group's name.

    The first tensor is [T, ..., H], the result [T, H] in the model dtype.
    """
    name = f"{name}_over_ranks"

    def run(*arguments: Any) -> torch.Tensor:
        return function(*arguments[:-1], _resolve_process_group(arguments[-1]))

    def shape(part: torch.Tensor, *_: Any) -> torch.Tensor:
        return part.new_empty((part.shape[0], part.shape[-1]), dtype=package.load().dtype)

    _LIBRARY.define(f"{name}({tensors}, str region, str group) -> Tensor")
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"isoexec_{package.NAME}::{name}", shape, lib=_LIBRARY)
    return getattr(registered, name)


# fp32 nodes [T, N] of every rank -> the rounded root on every rank.
combine = operator(
    "combine",
    "Tensor part",
    lambda part, region, group: tree_all_reduce(part, group, lambda parts: ops.combine(parts, region)),
)
# Rows [T, H], +0 where another rank holds them -> the rows, selected by bits: a sum would turn -0.0 into +0.0.
select = operator(
    "select",
    "Tensor rows",
    lambda rows, region, group: tree_all_reduce(rows, group, lambda parts: ops.select(parts, region)),
)
