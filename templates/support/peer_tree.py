# SPDX-License-Identifier: Apache-2.0
"""One-shot tree all-reduce in one kernel, over memory that all ranks of one host can write; for small messages.

Each rank pushes its fp32 node to every rank, each value in one 8-byte word beside the number of the call, so that a
word is its own flag: a reader waits until the number is the call's. Two halves alternate: a rank can be one call ahead
of another and never two, for a call ends only when the words of all ranks have come. Multicast is not used.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
import triton
import triton.language as tl

BLOCK = 512


@triton.jit
def _received(words, call, live):
    """The fp32 values of words once all carry the number of this call."""
    word = tl.load(words, mask=live, other=0, volatile=True)
    while tl.min(((word >> 32) == call).to(tl.int32) | (live == 0).to(tl.int32), 0) == 0:
        word = tl.load(words, mask=live, other=0, volatile=True)
    return word.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _subtree(words, call, live, CAPACITY: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr):
    if COUNT == 1:
        return _received(words + FIRST * CAPACITY, call, live)
    else:  # noqa: RET505 - Triton drops the branch not taken
        half: tl.constexpr = COUNT // 2
        left = _subtree(words, call, live, CAPACITY, FIRST, half)
        return left + _subtree(words, call, live, CAPACITY, FIRST + half, half)


@triton.jit(do_not_specialize=["size"])
def _peer_tree_kernel(part, out, peers, calls, size, RANK: tl.constexpr, RANKS: tl.constexpr, CAPACITY: tl.constexpr,
                      BLOCK: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    call = tl.load(calls + program) + 1
    tl.store(calls + program, call)
    index = program * BLOCK + tl.arange(0, BLOCK)
    live = index < size
    bits = tl.load(part + index, mask=live, other=0.0).to(tl.int32, bitcast=True)
    word = (call.to(tl.int64) << 32) | (bits.to(tl.int64) & 0xFFFFFFFF)
    half = (call % 2) * RANKS * CAPACITY
    for step in tl.static_range(1, RANKS + 1):
        peer = tl.multiple_of(tl.load(peers + (RANK + step) % RANKS), 16).to(tl.pointer_type(tl.int64))
        tl.store(peer + half + RANK * CAPACITY + index, word, mask=live)
    own = tl.multiple_of(tl.load(peers + RANK), 16).to(tl.pointer_type(tl.int64))
    root = _subtree(own + half + index, call, live, CAPACITY, 0, RANKS)
    tl.store(out + index, root.to(out.dtype.element_ty), mask=live)


class PeerTree:
    """The buffers of one group. Construct it on every rank, with the same capacity; call it in the same order."""

    def __init__(self, group: dist.ProcessGroup, capacity: int) -> None:
        """capacity: the most fp32 values of one call. Raises ValueError for a group that is no power of two."""
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if self.ranks & (self.ranks - 1):
            raise ValueError(f"the nodes of {self.ranks} ranks do not form a balanced tree")
        device = torch.device("cuda", torch.cuda.current_device())
        self.capacity = triton.cdiv(capacity, BLOCK) * BLOCK
        self.words = symmetric_memory.empty(2 * self.ranks * self.capacity, dtype=torch.int64, device=device).zero_()
        self.handle = symmetric_memory.rendezvous(self.words, group)
        self.peers = torch.tensor(self.handle.buffer_ptrs, dtype=torch.int64, device=device)
        self.calls = torch.zeros(self.capacity // BLOCK, dtype=torch.int32, device=device)
        torch.cuda.synchronize()
        dist.barrier(group)

    def __call__(self, part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The balanced tree over the ranks' nodes, rounded once to `dtype`: `tree_all_reduce`, bit for bit.

        part: fp32, contiguous, at most `capacity` values, of one shape on all ranks. CUDA graphs can hold it.
        Raises ValueError for another dtype, layout or size.
        """
        if part.dtype != torch.float32 or not part.is_contiguous() or part.numel() > self.capacity:
            raise ValueError(
                f"a part must be contiguous float32 of at most {self.capacity} values: {part.dtype} {tuple(part.shape)}"
            )
        out = torch.empty_like(part, dtype=dtype)
        if part.numel():
            _peer_tree_kernel[(triton.cdiv(part.numel(), BLOCK),)](
                part, out, self.peers, self.calls, part.numel(), RANK=self.rank, RANKS=self.ranks,
                CAPACITY=self.capacity, BLOCK=BLOCK, num_warps=4, num_stages=1, enable_fp_fusion=False,
            )  # fmt: skip
        return out
