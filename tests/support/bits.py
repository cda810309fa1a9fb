"""Tensors as bits: laws compare integers, so that -0.0 is not +0.0 and equal NaNs are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_QUIET_NAN = {torch.float32: 0x7FC00000, torch.bfloat16: 0x7FC0}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of `tensor` as integers of the same width, on the CPU."""
    return tensor.detach().contiguous().view(_INTEGER[tensor.element_size()]).cpu()


def one_nan(tensor: torch.Tensor) -> torch.Tensor:
    """Every NaN as one quiet NaN: across devices the payload of a NaN is not part of a contract."""
    quiet = torch.full_like(bits(tensor), _QUIET_NAN[tensor.dtype])
    return torch.where(tensor.detach().cpu().isnan(), quiet, bits(tensor)).view(tensor.dtype)


def differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """How many elements differ in any bit. Raises AssertionError when shape or dtype differ."""
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{a.dtype} {tuple(a.shape)} against {b.dtype} {tuple(b.shape)}"
    return int((bits(a) != bits(b)).sum())


def assert_same_bits(a: torch.Tensor, b: torch.Tensor, what: str = "") -> None:
    """Raises AssertionError with the count, the first place and both values when any bit differs."""
    count = differing(a, b)
    if count:
        flat = int((bits(a) != bits(b)).flatten().nonzero()[0, 0])
        left, right = (t.detach().cpu().flatten()[flat].item() for t in (a, b))
        place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), a.shape))
        raise AssertionError(f"{what}: {count} of {a.numel()} elements differ, first {left!r} and {right!r} at {place}")


def poison(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    """A tensor of NaN: what a kernel forgets to write, or reads without right, shows."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """A context in which `torch.empty` and its kin give NaN, so that an unwritten element cannot hide."""
    saved = torch.empty, torch.empty_like, torch.Tensor.new_empty

    def poisoning(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def made(*arguments: Any, **options: Any) -> torch.Tensor:
            tensor = make(*arguments, **options)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return made

    torch.empty, torch.empty_like, torch.Tensor.new_empty = map(poisoning, saved)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.empty, torch.empty_like, torch.Tensor.new_empty = saved  # type: ignore[assignment]
