# SPDX-License-Identifier: Apache-2.0
"""How a vocabulary is cut into leaves, and a leaf into what its kernels read at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """`leaves` leaves of `leaf` columns, the last of which may be padding: from column `vocab` on.

    A leaf is summed in blocks of [block / lanes, lanes] columns: full ones, and a rest.
    """

    vocab: int
    leaf: int
    leaves: int
    block: int
    lanes: int

    @property
    def full(self) -> int:
        """Full blocks of a leaf."""
        return self.leaf // self.block

    @property
    def whole(self) -> bool:
        """Whether no leaf has padding in a full block."""
        return (self.leaves - 1) * self.leaf + self.full * self.block <= self.vocab

    def constants(self) -> dict[str, int]:
        """The constants of a kernel. LONG + SHORT rows of lanes, both powers of two, hold the rest of a leaf."""
        rows = max(1, -(-(self.leaf % self.block) // self.lanes))
        long = 1 << max(0, (rows - 1).bit_length() - 1)
        short = 1 << max(0, rows - long - 1).bit_length()
        return {
            "VOCAB": self.vocab, "LEAF": self.leaf, "LEAVES": self.leaves, "BLOCK": self.block, "LANES": self.lanes,
            "FULL": self.full, "LONG": long, "SHORT": short,
        }  # fmt: skip
