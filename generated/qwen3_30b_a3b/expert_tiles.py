# SPDX-License-Identifier: Apache-2.0
"""Which rows belong to which expert, and which tile of a grouped GEMM computes them: integers only, on the device.

A counting sort without atomics. A thread stands for an expert and walks the slots of a block in order: first to count
its own, then to place them behind all earlier blocks. Slots of one expert stay in ascending order. Shapes depend on the
number of slots and experts alone, so that a CUDA graph can hold the whole layer.

A kernel of many programs lets the next one start when its own work is done: programs that came earlier would crowd on
the processors that are free first.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

SMALL = 128  # slots that one program sorts alone
GROUP = 16  # slots that are read before the first of them is placed
SOME = 8  # experts whose counts one program adds up
CHUNK = 32  # tiles that are written at once


@triton.jit
def _walk(experts, order, place, first, slots, column, known, WRITE: tl.constexpr, BLOCK: tl.constexpr,
          GROUP: tl.constexpr):  # fmt: skip
    """Each expert's next place after its slots in [first, first + BLOCK) took theirs; WRITE: into order."""
    for start in range(first, min(first + BLOCK, slots), GROUP):
        chosen = ()
        for step in tl.static_range(GROUP):  # all loads before a store, which they could not pass
            chosen += (tl.load(experts + start + step, mask=start + step < slots, other=-1),)
        for step in tl.static_range(GROUP):
            mine = chosen[step] == column
            if WRITE:
                tl.store(order + place, start + step, mask=mine & known)
            place += mine.to(tl.int32)
    return place


@triton.jit(do_not_specialize=["slots"])
def _count_kernel(experts, counts, slots, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                  GROUP: tl.constexpr):  # fmt: skip
    """counts[b, e]: how many slots of block b chose expert e."""
    column = tl.arange(0, WIDTH)
    none = tl.zeros((WIDTH,), tl.int32)
    gdc_wait()
    first = tl.program_id(0) * BLOCK
    total = _walk(experts, experts, none, first, slots, column, column < EXPERTS, False, BLOCK, GROUP)
    gdc_launch_dependents()
    tl.store(counts + tl.program_id(0) * EXPERTS + column, total, mask=column < EXPERTS)


@triton.jit(do_not_specialize=["blocks"])
def _before_kernel(counts, blocks, EXPERTS: tl.constexpr, SOME: tl.constexpr, GROUP: tl.constexpr):
    """counts[b, e]: how many slots of blocks before b chose expert e; counts[blocks, e]: of all. SOME experts."""
    column = tl.program_id(0) * SOME + tl.arange(0, SOME)[None, :]
    total = tl.zeros((1, SOME), tl.int32)
    gdc_wait()
    for first in range(0, blocks, GROUP):
        block = first + tl.arange(0, GROUP)[:, None]
        mask = (block < blocks) & (column < EXPERTS)
        count = tl.load(counts + block * EXPERTS + column, mask=mask, other=0)
        tl.store(counts + block * EXPERTS + column, total + tl.cumsum(count, 0) - count, mask=mask)
        total += tl.sum(count, 0)[None, :]
    gdc_launch_dependents()
    tl.store(counts + blocks * EXPERTS + column, total, mask=column < EXPERTS)


@triton.jit(do_not_specialize=["slots", "blocks"])
def _place_kernel(experts, counts, order, offsets, slots, blocks, EXPERTS: tl.constexpr, WIDTH: tl.constexpr,
                  BLOCK: tl.constexpr, GROUP: tl.constexpr):  # fmt: skip
    """Write each slot of one block to its place in expert order; block 0 also writes where each expert starts."""
    index = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    known = column < EXPERTS
    gdc_wait()
    total = tl.load(counts + blocks * EXPERTS + column, mask=known, other=0)
    end = tl.cumsum(total, 0)
    if index == 0:
        tl.store(offsets + column + 1, end, mask=known)
        tl.store(offsets + column, 0, mask=column == 0)
    place = end - total + tl.load(counts + index * EXPERTS + column, mask=known, other=0)
    _walk(experts, order, place, index * BLOCK, slots, column, known, True, BLOCK, GROUP)
    gdc_launch_dependents()


@triton.jit(do_not_specialize=["slots"])
def _sort_kernel(experts, order, offsets, slots, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
                 GROUP: tl.constexpr):  # fmt: skip
    """The whole sort of few slots in one program."""
    column = tl.arange(0, WIDTH)
    known = column < EXPERTS
    none = tl.zeros((WIDTH,), tl.int32)
    gdc_launch_dependents()
    gdc_wait()
    total = _walk(experts, experts, none, 0, slots, column, known, False, BLOCK, GROUP)
    end = tl.cumsum(total, 0)
    tl.store(offsets + column + 1, end, mask=known)
    tl.store(offsets + column, 0, mask=column == 0)
    _walk(experts, order, end - total, 0, slots, column, known, True, BLOCK, GROUP)


@triton.jit
def _tiles_kernel(offsets, tiles, live, EXPERTS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr,
                  CHUNK: tl.constexpr):  # fmt: skip
    """tiles[i] = (expert, first row, end row) of tile i, expert by expert, an expert a program; live: their number."""
    expert = tl.program_id(0)
    column = tl.arange(0, WIDTH)
    gdc_launch_dependents()
    gdc_wait()
    start = tl.load(offsets + column, mask=column < EXPERTS, other=0)
    end = tl.load(offsets + column + 1, mask=column < EXPERTS, other=0)
    row = tl.load(offsets + expert)
    stop = tl.load(offsets + expert + 1)
    number = (end - start + BLOCK_M - 1) // BLOCK_M
    tile = tl.sum(tl.where(column < expert, number, 0), 0)
    if expert == EXPERTS - 1:
        tl.store(live, tl.sum(number, 0))
    while row < stop:
        index = tl.arange(0, CHUNK)
        first = row + index * BLOCK_M
        mine = first < stop
        place = tiles + (tile + index) * 3
        tl.store(place, expert, mask=mine)
        tl.store(place + 1, first, mask=mine)
        tl.store(place + 2, tl.minimum(first + BLOCK_M, stop), mask=mine)
        row += CHUNK * BLOCK_M
        tile += CHUNK


@triton.jit
def rows_of(offsets, index, SCHEDULE: tl.constexpr, BLOCK_M: tl.constexpr, EXPERTS: tl.constexpr, WIDTH: tl.constexpr):
    """Expert, first row and end row of program `index`: one row; all rows of an expert; or a tile as `tiles` numbers
    them, found without its table. Expert -1: no rows."""
    column = tl.arange(0, WIDTH)
    if SCHEDULE == "rows":
        stop = tl.load(offsets + column + 1, mask=column < EXPERTS, other=2147483647)
        return tl.sum((stop <= index).to(tl.int32), 0), index, index + 1
    elif SCHEDULE == "experts":  # noqa: RET505
        first = tl.load(offsets + index)
        end = tl.load(offsets + index + 1)
        return tl.where(first < end, index, -1), first, end
    else:
        start = tl.load(offsets + column, mask=column < EXPERTS, other=0)
        stop = tl.load(offsets + column + 1, mask=column < EXPERTS, other=0)
        number = (stop - start + BLOCK_M - 1) // BLOCK_M
        last = tl.cumsum(number, 0)
        expert = tl.sum((last <= index).to(tl.int32), 0)
        first = tl.sum(tl.where(column == expert, start - (last - number) * BLOCK_M, 0), 0) + index * BLOCK_M
        end = tl.minimum(tl.sum(tl.where(column == expert, stop, 0), 0), first + BLOCK_M)
        return tl.where(expert < WIDTH, expert, -1), first, end


def programs(schedule: str, rows: int, experts: int, block_m: int) -> int:
    """How many programs `rows_of` needs at most."""
    return {"rows": rows, "experts": experts}.get(schedule, rows // block_m + min(experts, rows))


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
    offsets = experts.new_empty(count + 1)
    pinned = {"EXPERTS": count, "WIDTH": width, "num_warps": min(8, width // 16), "num_stages": 1, "launch_pdl": True}
    if slots <= SMALL:
        _sort_kernel[(1,)](
            experts, order, offsets, slots, BLOCK=SMALL, GROUP=2 * GROUP, **pinned, enable_fp_fusion=False
        )  # fmt: skip
        return order, offsets
    block = min(256, max(32, triton.next_power_of_2(triton.cdiv(slots, 256))))
    blocks = triton.cdiv(slots, block)
    counts = experts.new_empty(blocks + 1, count)
    _count_kernel[(blocks,)](experts, counts, slots, BLOCK=block, GROUP=GROUP, **pinned, enable_fp_fusion=False)
    _before_kernel[(triton.cdiv(count, SOME),)](
        counts, blocks, EXPERTS=count, SOME=SOME, GROUP=256, num_warps=8, num_stages=1, launch_pdl=True,
        enable_fp_fusion=False,
    )  # fmt: skip
    _place_kernel[(blocks,)](
        experts, counts, order, offsets, slots, blocks, BLOCK=block, GROUP=GROUP, **pinned, enable_fp_fusion=False
    )  # fmt: skip
    return order, offsets


def tiles(offsets: torch.Tensor, rows: int, block_m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tiles of at most block_m rows of one expert each. offsets: int32 [count + 1] as `dispatch` returns it.

    Returns int32 [n, 3] of (expert, first row, end row), n the largest number that `rows` rows can need, and int32 [1],
    how many there are; the others stay unwritten.
    """
    experts = offsets.numel() - 1
    table = offsets.new_empty(programs("tiles", rows, experts, block_m), 3)
    live = offsets.new_empty(1)
    _tiles_kernel[(experts,)](
        offsets, table, live,
        EXPERTS=experts, WIDTH=max(16, triton.next_power_of_2(experts)), BLOCK_M=block_m, CHUNK=CHUNK,
        num_warps=1, num_stages=1, launch_pdl=True, enable_fp_fusion=False,
    )  # fmt: skip
    return table, live
