"""Seeded arguments for the laws: ordinary rows, and rows on which another order of a sum shows."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

KINDS = ("normal", "wide", "special", "cancelling")
SPECIAL = (-0.0, 0.0, 1e-45, -3e-41, 1e-39, -1.2e-38, 1e-20, 1.0, -1.0)
LARGE = 1e4


class Draw:
    """Values drawn on one device from one seed. Row r is of kind `kinds[r % len(kinds)]`:

    normal      standard normal
    wide        normal times exp(4 * normal): magnitudes over ten decades
    special     about half of the values -0.0, +0.0, subnormal, tiny, one or large
    cancelling  pairs of opposite values at scattered places; where a weight repeats at the same pairs (every second
                row of `weight`) the exact sum is zero, and what a kernel returns is the rounding of its own order

    `fired` counts what the drawn rows really hold.
    """

    def __init__(self, device: str, seed: int, dtype: torch.dtype, kinds: tuple[str, ...] = KINDS) -> None:
        import torch

        self.device, self.seed, self.dtype, self.kinds = device, seed, dtype, kinds
        self.generator = torch.Generator(device).manual_seed(seed)
        self.fired: Counter[str] = Counter()

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal values in the model dtype."""
        import torch

        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype or self.dtype)

    def integers(self, *shape: int, below: int, dtype: Any = None) -> torch.Tensor:
        """Uniform int64 in [0, below)."""
        import torch

        drawn = torch.randint(below, shape, generator=self.generator, device=self.device)
        return drawn if dtype is None else drawn.to(dtype)

    def rows(self, count: int, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """[count, width] rows of the kinds in turn."""
        import torch

        values = torch.randn((count, width), generator=self.generator, device=self.device)
        for index, kind in enumerate(self.kinds):
            chosen = values[index :: len(self.kinds)]
            if kind == "wide":
                chosen *= torch.exp(4 * torch.randn(chosen.shape, generator=self.generator, device=self.device))
            elif kind == "special":
                special = torch.tensor((*SPECIAL, LARGE, -LARGE), device=self.device)
                picked = special[self.integers(*chosen.shape, below=len(special))]
                chosen.copy_(torch.where(self.integers(*chosen.shape, below=2).bool(), picked, chosen))
            elif kind == "cancelling":
                first, second = self._pairs(width)
                chosen[:, second] = -chosen[:, first]
                self.fired["cancelling"] += chosen.numel()
        drawn = values.to(dtype or self.dtype)
        self._count(drawn)
        return drawn

    def weight(self, outputs: int, width: int) -> torch.Tensor:
        """[outputs, width] normal values; every second row repeats its values at the pairs of cancelling rows."""
        values = self.normal(outputs, width)
        first, second = self._pairs(width)
        values[::2, second] = values[::2, first]
        return values

    def _pairs(self, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        order = torch.randperm(width, generator=torch.Generator().manual_seed(self.seed)).to(self.device)
        return order[: width // 2], order[width // 2 : width // 2 * 2]

    def _count(self, drawn: torch.Tensor) -> None:
        import torch

        if "special" not in self.kinds:
            return
        values = drawn[self.kinds.index("special") :: len(self.kinds)].float()
        zero, negative = values == 0, torch.signbit(values)
        self.fired["negative zero"] += int((zero & negative).sum())
        self.fired["positive zero"] += int((zero & ~negative).sum())
        self.fired["subnormal"] += int((~zero & (values.abs() < torch.finfo(torch.float32).tiny)).sum())
        self.fired["large"] += int((values.abs() >= LARGE / 2).sum())
