"""Tensors as bits: laws compare integers, so that -0.0 is not +0.0 and equal NaNs are equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of `tensor` as integers of the same width, on its device."""
    import torch

    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.detach().contiguous().view(integer[tensor.element_size()])


def one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Every NaN as one quiet NaN: across devices the payload of a NaN is not part of a contract."""
    import torch

    return torch.where(tensor.isnan(), float("nan"), tensor) if tensor.is_floating_point() else tensor


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements differ in any bit. Raises ValueError when shape or dtype differ."""
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        raise ValueError(f"{a.dtype} {tuple(a.shape)} cannot be compared with {b.dtype} {tuple(b.shape)}")
    return int((words(a) != words(b)).sum())


@contextmanager
def poisoned() -> Iterator[None]:
    """Within, `torch.empty`, `empty_like` and `new_empty` give NaN, so that an unwritten element cannot hide."""
    import torch

    saved = torch.empty, torch.empty_like, torch.Tensor.new_empty

    def filling(make: Any) -> Any:
        def made(*arguments: Any, **options: Any) -> Any:
            tensor = make(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    torch.empty, torch.empty_like, torch.Tensor.new_empty = map(filling, saved)
    try:
        yield
    finally:
        torch.empty, torch.empty_like, torch.Tensor.new_empty = saved
