"""Triton's interpreter made sound for bfloat16 and for the order of dots.

Up to 3.9 it keeps bfloat16 as raw uint16 words: arithmetic and dots multiply the words, and the cast from fp32 does not
round to nearest even. Here every bfloat16 operation widens to fp32 and rounds once, and a dot adds one k after the
other, so that its bits do not depend on the tile. Call `repair()` before a kernel runs, in a process that started with
TRITON_INTERPRET=1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_CASTS = (
    "create_si_to_fp",
    "create_ui_to_fp",
    "create_fp_to_si",
    "create_fp_to_ui",
    "create_fp_ext",
    "create_fp_trunc",
)


def widened(words: np.ndarray) -> np.ndarray:
    """uint16 words of bfloat16 -> the same values in fp32."""
    return (words.astype(np.uint32) << 16).view(np.float32)


def rounded(values: np.ndarray) -> np.ndarray:
    """fp32 -> uint16 words of bfloat16, to nearest, ties to even; NaN stays NaN."""
    word = np.ascontiguousarray(values, np.float32).view(np.uint32)
    nearest = ((word.astype(np.uint64) + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), ((word >> 16) | 0x40).astype(np.uint16), nearest)


def _is_bfloat16(handle: TensorHandle) -> bool:
    return bool(handle.dtype.scalar == tl.bfloat16)


def _values(handle: TensorHandle) -> np.ndarray:
    return widened(handle.data) if _is_bfloat16(handle) else handle.data


_original_cast = InterpreterBuilder.cast_impl
_original_binary = InterpreterBuilder.binary_op


def _cast(self: Any, source: TensorHandle, dst_type: Any) -> TensorHandle:
    to = dst_type.scalar
    if to == tl.bfloat16 and not _is_bfloat16(source):
        return TensorHandle(rounded(source.data.astype(np.float32)), to)
    if to != tl.bfloat16 and _is_bfloat16(source):
        source = TensorHandle(widened(source.data), tl.float32)
    return source if to == source.dtype.scalar else _original_cast(self, source, dst_type)


def _binary(self: Any, lhs: TensorHandle, rhs: TensorHandle, op: Any) -> TensorHandle:
    if not (_is_bfloat16(lhs) and _is_bfloat16(rhs)):
        return _original_binary(self, lhs, rhs, op)
    result = op(_values(lhs), _values(rhs))
    return TensorHandle(rounded(result), tl.bfloat16) if result.dtype == np.float32 else TensorHandle(result, tl.int1)


def _dot(self: Any, a: TensorHandle, b: TensorHandle, d: TensorHandle, *_options: Any) -> TensorHandle:
    left, right = (_values(handle).astype(np.float32) for handle in (a, b))
    total = d.data.astype(np.float32)
    for k in range(left.shape[-1]):
        total = total + left[..., :, k, None] * right[..., None, k, :]
    return TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def repair() -> None:
    """Replace the interpreter's bfloat16 casts, binary operations and dots, for the rest of this process.

    Kernels run one after the other here, so that waiting for the kernel before is nothing.
    """
    cuda = import_module("triton.language.extra.cuda")
    cuda.gdc_wait = cuda.gdc_launch_dependents = lambda: None  # type: ignore[attr-defined]
    InterpreterBuilder.cast_impl = _cast
    InterpreterBuilder.binary_op = _binary
    InterpreterBuilder.create_dot = _dot
    for name in _CASTS:
        setattr(InterpreterBuilder, name, lambda self, source, to: self.cast_impl(source, to))
