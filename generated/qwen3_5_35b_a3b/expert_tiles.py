# SPDX-License-Identifier: Apache-2.0
"""Which rows belong to which expert, and which tile of a grouped GEMM computes them: integers only, on the device.

A counting sort without atomics: blocks of slots count their experts, then every block places its slots behind all
earlier blocks. Slots of one expert stay in ascending order. Shapes depend on the number of slots and experts alone, so
that a CUDA graph can hold the whole layer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CHUNK = 32
SMALL = 128  # slots that one program sorts alone


@triton.jit
def _count(experts, first, end, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """How many of the slots [first, end) chose each expert."""
    total = tl.zeros((WIDTH,), tl.int32)
    for start in range(first, end, CHUNK):
        slot = start + tl.arange(0, CHUNK)
        expert = tl.load(experts + slot, mask=slot < end, other=WIDTH)
        total += tl.sum((expert[:, None] == tl.arange(0, WIDTH)[None, :]).to(tl.int32), 0)
    return total


@triton.jit(do_not_specialize=["slots", "block"])
def _count_kernel(experts, counts, slots, block, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr):
    """counts[b, e]: how many slots of block b chose expert e."""
    index = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    total = _count(experts, index * block, min(index * block + block, slots), WIDTH, CHUNK)
    tl.store(counts + index * EXPERTS + column, total, mask=column < EXPERTS)


@triton.jit(do_not_specialize=["slots", "block", "blocks"])
def _place_kernel(experts, counts, order, offsets, slots, block, blocks,
                  EXPERTS: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr,
                  ALONE: tl.constexpr):  # fmt: skip
    """Write each slot of one block to its place in expert order; block 0 also writes where each expert starts.

    A block that is alone counts for itself.
    """
    index = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    known = column < EXPERTS
    before = tl.zeros((WIDTH,), tl.int32)
    total = tl.zeros((WIDTH,), tl.int32)
    if ALONE:
        total = _count(experts, 0, slots, WIDTH, CHUNK)
    else:
        for first in range(0, blocks, GROUP):
            other = first + tl.arange(0, GROUP)[:, None]
            count = tl.load(counts + other * EXPERTS + column[None, :], mask=(other < blocks) & known[None, :], other=0)
            total += tl.sum(count, 0)
            before += tl.sum(tl.where(other < index, count, 0), 0)
    end = tl.cumsum(total, 0)
    if index == 0:
        tl.store(offsets + column + 1, end, mask=known)
        tl.store(offsets + column, 0, mask=column == 0)
    place = end - total + before
    earlier = tl.arange(0, CHUNK)[None, :] < tl.arange(0, CHUNK)[:, None]
    for first in range(index * block, min(index * block + block, slots), CHUNK):
        slot = first + tl.arange(0, CHUNK)
        expert = tl.load(experts + slot, mask=slot < slots, other=WIDTH)
        again = tl.load(experts + slot, mask=slot < slots, other=WIDTH)
        chosen = expert[:, None] == column[None, :]
        rank = tl.sum(((expert[:, None] == again[None, :]) & earlier).to(tl.int32), 1)
        row = rank + tl.sum(tl.where(chosen, place[None, :], 0), 1)
        tl.store(order + row, slot, mask=slot < slots)
        place += tl.sum(chosen.to(tl.int32), 0)


@triton.jit(do_not_specialize=["count"])
def _tiles_kernel(offsets, tiles, count, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
                  CHUNK: tl.constexpr):  # fmt: skip
    """tiles[i] = (expert, first row, end row) of tile i, expert by expert; expert -1 past the last tile."""
    column = tl.arange(0, WIDTH)
    start = tl.load(offsets + column, mask=column < EXPERTS, other=0)
    end = tl.load(offsets + column + 1, mask=column < EXPERTS, other=0)
    number = (end - start + BLOCK_M - 1) // BLOCK_M
    last = tl.cumsum(number, 0)
    tile = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    expert = tl.sum((last[None, :] <= tile[:, None]).to(tl.int32), 1)
    mine = column[None, :] == expert[:, None]
    first = tl.sum(tl.where(mine, (start - (last - number) * BLOCK_M)[None, :], 0), 1) + tile * BLOCK_M
    stop = tl.minimum(tl.sum(tl.where(mine, end[None, :], 0), 1), first + BLOCK_M)
    write = tile < count
    tl.store(tiles + tile * 3, tl.where(expert < WIDTH, expert, -1), mask=write)
    tl.store(tiles + tile * 3 + 1, first, mask=write)
    tl.store(tiles + tile * 3 + 2, stop, mask=write)


def dispatch(experts: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots by expert, ascending slot within an expert. experts: int32 [T, k] in [0, count), contiguous.

    Returns order int32 [T * k], the slot (token * k + choice) of each row in expert order, and offsets int32
    [count + 1], the first row of each expert. Raises ValueError on another dtype or layout.
    """
    if experts.dtype != torch.int32 or experts.dim() != 2 or not experts.is_contiguous():
        raise ValueError(f"experts must be contiguous int32 [T, k], not {experts.dtype} {tuple(experts.shape)}")
    slots, width = experts.numel(), max(16, triton.next_power_of_2(count))
    order = experts.new_empty(slots)
    if not slots:
        return order, experts.new_zeros(count + 1)
    block = max(CHUNK if slots > SMALL else SMALL, triton.next_power_of_2(triton.cdiv(slots, 256)))
    blocks = triton.cdiv(slots, block)
    counts, offsets = experts.new_empty(blocks, count), experts.new_empty(count + 1)
    pinned = {"EXPERTS": count, "WIDTH": width, "CHUNK": CHUNK, "num_warps": 8, "num_stages": 1}
    if blocks > 1:
        _count_kernel[(blocks,)](experts, counts, slots, block, **pinned, enable_fp_fusion=False)
    _place_kernel[(blocks,)](
        experts, counts, order, offsets, slots, block, blocks, GROUP=16, ALONE=blocks == 1, **pinned,
        enable_fp_fusion=False,
    )  # fmt: skip
    return order, offsets


def tiles(offsets: torch.Tensor, rows: int, block_m: int) -> torch.Tensor:
    """The tiles of at most block_m rows of one expert each. offsets: int32 [count + 1] as `dispatch` returns it.

    Returns int32 [n, 3] of (expert, first row, end row), n the largest number that `rows` rows can need; unneeded
    tiles have expert -1.
    """
    experts = offsets.numel() - 1
    count = rows // block_m + min(experts, rows)
    table = offsets.new_empty(count, 3)
    _tiles_kernel[(triton.cdiv(count, CHUNK),)](
        offsets, table, count,
        EXPERTS=experts, WIDTH=max(16, triton.next_power_of_2(experts)), BLOCK_M=block_m, CHUNK=CHUNK,
        num_warps=4, num_stages=1, enable_fp_fusion=False,
    )  # fmt: skip
    return table
