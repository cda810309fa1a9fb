# SPDX-License-Identifier: Apache-2.0
"""What launchers share: the model dtypes by name, the launch bucket of a call, and refusals."""

from __future__ import annotations

from collections.abc import Mapping

import torch

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def bucket(launch: tuple[tuple[int | None, Mapping[str, int]], ...], rows: int) -> Mapping[str, int]:
    """The parameters of the first bucket `(max_rows, parameters)` that `rows` fits in; the last has no limit."""
    return next(parameters for limit, parameters in launch if limit is None or rows <= limit)


def require(holds: bool, sentence: str) -> None:
    """Raises ValueError with `sentence` when a launcher cannot take its arguments."""
    if not holds:
        raise ValueError(sentence)
