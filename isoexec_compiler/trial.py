"""One call of a kernel module's function, with all that a law may ask about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Arguments = tuple[Any, ...]


def _same(output: torch.Tensor) -> torch.Tensor:
    return output


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Drawn arguments of one function.

    arguments   of a batch of rows
    rows        which arguments have the rows as their first axis; none: the batch cannot be taken apart
    counted     further arguments that depend on the number of rows, by index
    truth       the float64 result of the same arguments, or None
    bound       allowed relative error of a result in the model dtype, where more than one rounding enters it
    reordered   arguments with the same exact result whose sums run in another order, or None where nothing is summed
    restored    brings a result of `reordered` back into the order of `arguments`
    run         how to call a module, where it is not just its function of this name
    """

    arguments: Arguments
    rows: tuple[int, ...] = ()
    counted: Mapping[int, Callable[[int], Any]] = field(default_factory=dict)
    truth: Callable[[], tuple[torch.Tensor, ...]] | None = None
    bound: float | None = None
    reordered: Callable[[], Arguments] | None = None
    restored: Callable[[torch.Tensor], torch.Tensor] = _same
    run: Callable[..., Any] | None = None

    def take(self, first: int, count: int) -> Arguments:
        """The arguments of `count` rows from `first` on, as a batch of their own."""
        return tuple(
            argument[first : first + count]
            if index in self.rows
            else self.counted[index](count)
            if index in self.counted
            else argument
            for index, argument in enumerate(self.arguments)
        )
