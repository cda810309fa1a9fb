# SPDX-License-Identifier: Apache-2.0
"""Autograd functions at the price of their forward where no gradient can be asked for: in engines and in scoring."""

from __future__ import annotations

from typing import Any

import torch


class _Unrecorded:
    """A context of an autograd function that keeps nothing."""

    def save_for_backward(self, *tensors: torch.Tensor) -> None:
        return None

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        return None


def apply(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """`function.apply(*arguments)`; where none of them asks for a gradient, its forward alone: the same bits."""
    if torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments):
        return function.apply(*arguments)
    return function.forward(_Unrecorded(), *arguments)
