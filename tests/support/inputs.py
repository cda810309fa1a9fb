"""Fresh seeded inputs, ordinary and hazardous."""

from __future__ import annotations

import torch

ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257)
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def sizes(place: str) -> tuple[int, ...]:
    """Batches that a law tries: the interpreter, a thousand times slower, gets small ones, a device large ones too."""
    return {"interpreter": (1, 2, 4), "sm90": (*ROWS, 1024, 8192)}.get(place, ROWS)


def batch(place: str) -> int:
    """How many rows a law draws."""
    return max(sizes(place)) + (place == "interpreter")


def slices(place: str) -> list[tuple[int, int]]:
    """(first, last) of batches of each of the `sizes` at the beginning, middle and end of `batch(place)` rows."""
    total = batch(place)
    return [(first, first + rows) for rows in sizes(place) for first in sorted({0, (total - rows) // 2, total - rows})]


def normal(*shape: int, seed: int, dtype: str = "fp32", device: str = "cpu", scale: float = 1.0) -> torch.Tensor:
    """Standard normal values times `scale`, drawn on the CPU: the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator) * scale).to(DTYPES[dtype]).to(device)


def wide(*shape: int, seed: int, dtype: str = "fp32", device: str = "cpu") -> torch.Tensor:
    """Normal values times exp(4 * normal): magnitudes over ten decades, so that any other order of a sum shows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, generator=generator) * torch.exp(4 * torch.randn(*shape, generator=generator))
    return values.to(DTYPES[dtype]).to(device)


def integers(*shape: int, below: int, seed: int, device: str = "cpu") -> torch.Tensor:
    """Uniform int64 in [0, below)."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed)).to(device)


def hazards(*shape: int, seed: int, dtype: str = "fp32", device: str = "cpu", largest: float = 1e18) -> torch.Tensor:
    """Normal values, about half of them replaced by -0.0, +0.0, subnormals, and magnitudes from 1e-38 to `largest`."""
    special = torch.tensor([-0.0, 0.0, 1e-45, -3e-41, 1e-39, -1.2e-38, 1e-20, 1.0, -1.0, largest, -largest])
    values = normal(*shape, seed=seed)
    chosen = special[integers(*shape, below=len(special), seed=seed + 1)]
    mixed = torch.where(integers(*shape, below=2, seed=seed + 2).bool(), chosen, values)
    return mixed.to(DTYPES[dtype]).to(device)


def hazard_counts(values: torch.Tensor) -> dict[str, int]:
    """How often each hazard is really present: a law asserts that none of these is zero."""
    v = values.detach().float().cpu()
    tiny = torch.finfo(torch.float32).tiny
    return {
        "negative zero": int(((v == 0) & torch.signbit(v)).sum()),
        "positive zero": int(((v == 0) & ~torch.signbit(v)).sum()),
        "subnormal": int(((v != 0) & (v.abs() < tiny)).sum()),
        "large": int((v.abs() > 1e15).sum()),
    }
