# SPDX-License-Identifier: Apache-2.0
"""Bytes between the GPUs of one host through memory that all ranks can write; the arithmetic is the caller's.

Small parts travel as words of 8 bytes: 4 of a value beside the number of the call, so that a word is its own flag and
one trip over NVLink is all. Larger parts are written plainly into the peers' buffers, between barriers. Multicast is
not used. A group's calls come in one order and on one stream; CUDA graphs can hold them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import triton
import triton.language as tl

from .tree_collectives import combined_slice

Combine = Callable[[torch.Tensor], torch.Tensor]

# Bytes of words a rank may receive in one shot; above it plain writes and a second shot cost less. Moves no bit.
ONE_SHOT_BYTES = 1 << 20
# The largest part; a larger one takes the process group's own way. Moves no bit.
PART_BYTES = 192 << 20

_BLOCK = 512  # words of a program
_WIDE_BLOCK = 4096  # plain values of a program


@triton.jit
def _received(words, call, live):
    """The values of words, int32, once all of them carry the number of this call."""
    word = tl.load(words, mask=live, other=0, volatile=True)
    while tl.min(((word >> 32) == call).to(tl.int32) | (live == 0).to(tl.int32), 0) == 0:
        word = tl.load(words, mask=live, other=0, volatile=True)
    return word.to(tl.int32)


@triton.jit(do_not_specialize=["share", "size"])
def _words_kernel(part, out, peers, calls, share, size, WHOLE: tl.constexpr, RANK: tl.constexpr, RANKS: tl.constexpr,
                  CAPACITY: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Every rank's `share` values for this rank, or its WHOLE part, into out, int32 [RANKS, share].

    Values at `size` and beyond are zeros. A program sends before it waits, and waits for the same program of the other
    ranks alone. Two halves of the buffer alternate: a rank can be one call ahead of another and never two, for a call
    ends only when the words of all ranks have come. Then, every warp having read it, the number of the call is stored.
    """
    program = tl.program_id(0)
    call = tl.load(calls + program) + 1
    index = program * BLOCK + tl.arange(0, BLOCK)
    live = index < share
    half = (call & 1) * RANKS * CAPACITY
    for step in tl.static_range(1, RANKS + 1):
        receiver = (RANK + step) % RANKS
        source = index if WHOLE else index + receiver * share
        bits = tl.load(part + source, mask=live & (source < size), other=0)
        if step == RANKS:
            tl.store(out + RANK * share + index, bits, mask=live)
        else:
            word = (call.to(tl.int64) << 32) | (bits.to(tl.int64) & 0xFFFFFFFF)
            peer = tl.multiple_of(tl.load(peers + receiver).to(tl.pointer_type(tl.int64)), 16)
            tl.store(peer + half + RANK * CAPACITY + index, word, mask=live)
    own = tl.multiple_of(tl.load(peers + RANK).to(tl.pointer_type(tl.int64)), 16)
    for sender in tl.static_range(RANKS):
        if sender != RANK:
            bits = _received(own + half + sender * CAPACITY + index, call, live)
            tl.store(out + sender * share + index, bits, mask=live)
    tl.debug_barrier()  # every warp has read the number
    tl.store(calls + program, call)


@triton.jit(do_not_specialize=["share", "size"])
def _push_kernel(part, peers, share, size, START: tl.constexpr, WHOLE: tl.constexpr, RANK: tl.constexpr,
                 RANKS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Each rank's share of the part, or the WHOLE part, into its buffer at START, int32 [RANKS, 4 * share].

    share, size: vectors of 4 values. Vectors at `size` and beyond are zeros.
    """
    receiver = (RANK + 1 + tl.program_id(1)) % RANKS
    stride = share.to(tl.int64) * 4
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    source = index if WHOLE else index + receiver * stride
    bits = tl.load(part + source, mask=(index < stride) & (source < size.to(tl.int64) * 4), other=0)
    peer = tl.multiple_of(tl.load(peers + receiver).to(tl.pointer_type(tl.int32)), 16)
    tl.store(peer + START + RANK * stride + index, bits, mask=index < stride)


class PeerMemory:
    """The buffers of one group: words, parts, results.

    Between calls nobody reads or writes parts: a call that read them meets the others at a barrier afterwards. Results
    are written only after a barrier of the same call, which every rank reaches after reading those of the call before.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        """All ranks together. Raises RuntimeError where the GPUs cannot write each other's memory."""
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.capacity = triton.cdiv(ONE_SHOT_BYTES // (8 * (self.ranks - 1)), _BLOCK) * _BLOCK
        self.parts = 4 * self.ranks * self.capacity  # the first value after the words
        self.results = self.parts + PART_BYTES // 4
        self.buffer, self.handle = _shared(self.results + PART_BYTES // 4, group)
        self.peers = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=self.buffer.device)
        self.calls = torch.zeros(self.capacity // _BLOCK, dtype=torch.int32, device=self.buffer.device)

    def fits(self, part: torch.Tensor, shared: bool = False) -> bool:
        """Whether a part can be gathered or, if its rows are `shared`, reduced. A function of shape and dtype."""
        size = _bytes(part)
        held = self.ranks * (self._share(part) if shared else size) <= PART_BYTES
        return size > 0 and held and (part.shape[-1] % 8 == 0 or (size % 4 == 0 and self._in_words(size)))

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Every rank's part by ascending rank. part: [...] of one shape on all ranks. Returns [W, ...]."""
        shape = (self.ranks, *part.shape)
        if self._in_words(_bytes(part)):
            return self._words(part, shape, whole=True)
        parts = self._push(part, self.parts, shape, whole=True).clone()
        self.handle.barrier()
        return parts

    def all_reduce(self, part: torch.Tensor, combine: Combine) -> torch.Tensor:
        """`combine` of all parts, on every rank, in one shot or two. part: [T, ...]."""
        if self._in_words(_bytes(part)):
            return combine(self._words(part, (self.ranks, *part.shape), whole=True))
        parts = self._push(part, self.parts, self._sliced(part), whole=False)
        mine = combined_slice(parts, part.shape[0], self.rank, combine)
        rows = self._push(mine, self.results, (self.ranks, *mine.shape), whole=True)
        return rows.flatten(0, 1)[: part.shape[0]].clone()

    def reduce_scatter(self, part: torch.Tensor, combine: Combine) -> torch.Tensor:
        """This rank's rows of `all_reduce`. part: [T, ...], W divides T."""
        if self._in_words(self._share(part)):
            return combine(self._words(part, self._sliced(part), whole=False))
        mine = combine(self._push(part, self.parts, self._sliced(part), whole=False))
        self.handle.barrier()
        return mine

    def _in_words(self, share: int) -> bool:
        return share * 2 * (self.ranks - 1) <= ONE_SHOT_BYTES

    def _sliced(self, part: torch.Tensor) -> tuple[int, ...]:
        return (self.ranks, triton.cdiv(part.shape[0], self.ranks), *part.shape[1:])

    def _share(self, part: torch.Tensor) -> int:
        return math.prod(self._sliced(part)[1:]) * part.element_size()

    def _words(self, part: torch.Tensor, shape: tuple[int, ...], whole: bool) -> torch.Tensor:
        out = part.new_empty(shape)
        share = _bytes(out) // self.ranks // 4
        _words_kernel[(triton.cdiv(share, _BLOCK),)](
            _values(part), _values(out), self.peers, self.calls, share, _bytes(part) // 4, WHOLE=whole, RANK=self.rank,
            RANKS=self.ranks, CAPACITY=self.capacity, BLOCK=_BLOCK, num_warps=4, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        return out

    def _push(self, part: torch.Tensor, start: int, shape: tuple[int, ...], whole: bool) -> torch.Tensor:
        """What all ranks wrote here, in place: valid until the next barrier after this one."""
        values = math.prod(shape) * part.element_size() // 4
        share = values // self.ranks
        _push_kernel[(triton.cdiv(share, _WIDE_BLOCK), self.ranks)](
            _values(part), self.peers, share // 4, _bytes(part) // 16, START=start, WHOLE=whole, RANK=self.rank,
            RANKS=self.ranks, BLOCK=_WIDE_BLOCK, num_warps=8, num_stages=1, enable_fp_fusion=False,
        )  # fmt: skip
        self.handle.barrier()
        return self.buffer[start : start + values].view(part.dtype).view(shape)


def _shared(size: int, group: dist.ProcessGroup) -> tuple[torch.Tensor, Any]:
    """Zeros, int32 [size], which every rank can write, and a handle: the ranks' addresses and their barrier."""
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    device = torch.device("cuda", torch.cuda.current_device())
    buffer = symmetric_memory.empty(size, dtype=torch.int32, device=device).zero_()
    handle = symmetric_memory.rendezvous(buffer, group)
    torch.cuda.synchronize()
    dist.barrier(group)
    return buffer, handle


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as the values that travel: 4 bytes each, sharing its memory if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.int32)
