"""Peer memory without GPUs: usage `TRITON_INTERPRET=1 python -m tests.support.peer_ranks WORLD`.

The real Triton kernels, interpreted, in real processes whose buffers are files that all of them map. Raises where a bit
differs from one rank's, on both sides of every threshold and with the calls in an order that reuses the buffers.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from tests.support.bits import assert_same_bits, differing
from tests.support.inputs import wide
from tests.support.ranks import on_ranks
from tests.support.support_modules import support_module

MEMORY = support_module("peer_memory")
COLUMNS = 24
# Words on one side of 8 KiB and plain writes on the other; the last part is too large for the buffer.
ROWS = (1, 3, 9, 64, 129, 800)
MEMORY.ONE_SHOT_BYTES, MEMORY.PART_BYTES = 8 << 10, 64 << 10


def files(folder: str) -> Any:
    """What stands for the symmetric allocation: one file a rank, and the group's own barrier."""

    def shared(size: int, group: dist.ProcessGroup) -> tuple[torch.Tensor, SimpleNamespace]:
        world = dist.get_world_size(group)
        mine = Path(folder) / str(dist.get_rank(group))
        mine.write_bytes(bytes(4 * size))
        dist.barrier(group)
        buffers = [
            torch.from_file(str(mine.with_name(str(rank))), shared=True, size=size, dtype=torch.int32)
            for rank in range(world)
        ]
        handle = SimpleNamespace(
            buffer_ptrs=[b.data_ptr() for b in buffers], barrier=lambda: dist.barrier(group), buffers=buffers
        )
        return buffers[dist.get_rank(group)], handle

    return shared


def summed(parts: torch.Tensor) -> torch.Tensor:
    """By ascending rank."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def combined(parts: torch.Tensor) -> torch.Tensor:
    """A stand-in for a region's combine, which rounds once."""
    return summed(parts).bfloat16()


def check(group: dist.ProcessGroup, folder: str) -> None:
    MEMORY._shared = files(folder)
    memory = MEMORY.PeerMemory(group)
    world, rank = memory.ranks, memory.rank
    ways = set()
    for turn, rows in enumerate((*ROWS, *reversed(ROWS))):
        parts = wide(world, rows, COLUMNS, seed=turn)
        root = combined(parts)
        fits = memory.fits(parts[rank], shared=True)
        ways.add((fits, fits and memory._in_words(parts[rank].numel() * 4)))
        if not fits:
            continue
        found = memory.all_reduce(parts[rank], combined)
        assert_same_bits(found, root, f"all-reduce of {rows} rows on {world} ranks")
        if memory.fits(parts[rank]):
            assert_same_bits(memory.gather(parts[rank].bfloat16()), parts.bfloat16(), f"gather of {rows} rows")
        if rows % world == 0:
            mine = slice(rank * rows // world, (rank + 1) * rows // world)
            for _ in range(2):
                scattered = memory.reduce_scatter(parts[rank], combined)
                assert_same_bits(scattered, root[mine], f"reduce-scatter of {rows} rows on {world} ranks")
        rotated = memory.all_reduce(parts[(rank + 1) % world], summed)
        assert rows < 9 or (differing(rotated, summed(parts)) > 0) == (world > 2), "control: rotated ranks"
    assert ways == {(True, True), (True, False), (False, False)}, "sizes do not lie on all sides of the thresholds"
    strided = parts[rank, :8].T.contiguous().T
    assert_same_bits(memory.gather(strided), memory.gather(strided.contiguous()), "strided part")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        on_ranks(int(sys.argv[1]), check, place)
