"""Attention in its forms: packed prefill, chunks against a paged cache, single rows; and comparisons of their bits."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from types import ModuleType

import torch

from tests.support.bits import assert_same_bits, poisoned_outputs
from tests.support.inputs import integers, normal
from tests.support.rendering import render_kernel
from tests.support.targets import DEVICE, HOPPER, INTERPRETING, TARGET

Launch = dict[str, int | str]
TILES: Launch = {"schedule": "tiles", "block_m": 16, "num_warps": 4, "num_stages": 2, "programs": 0}
# (head_dim, kv_block, split, group, page): every one compiles kernels of its own
FORMS = (
    [
        (64, 64, 1024, 4, 16),
        (128, 64, 1024, 4, 16),
        (128, 64, 1024, 1, 32),
        (128, 64, 1024, 7, 48),
        (128, 128, 2048, 4, 64),
        (256, 64, 1024, 8, 48),
    ]
    if HOPPER
    else [(16, 16, 32, 1, 16), (16, 16, 32, 4, 32), (32, 16, 32, 7, 48), (32, 32, 64, 4, 64)]
)
LAUNCHES: list[Launch] = [
    *(
        {"schedule": "warp_specialised", "block_m": m, "num_warps": 4, "num_stages": s, "programs": p}
        for m, s, p in [(64, 2, 0), (64, 2, 999), (64, 3, 132), (128, 3, 999), (128, 2, 0)]
    ),
    *(
        {"schedule": "tiles", "block_m": m, "num_warps": w, "num_stages": s, "programs": p}
        for m, w, s, p in [(16, 1, 2, 0), (16, 2, 3, 999), (32, 4, 1, 0), (64, 4, 2, 999), (64, 8, 2, 0)]
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Two key heads, each with `group` query heads, and the arithmetic over them."""

    dim: int
    kv_block: int
    split: int
    group: int = 4
    dtype: str = "bf16"

    def kernels(self, place: str, launch: Launch | None = None) -> ModuleType:
        attributes = {
            "q_heads": 2 * self.group, "kv_heads": 2, "head_dim": self.dim, "scale": self.dim**-0.5, "causal": True,
        }  # fmt: skip
        constants = {"kv_block": self.kv_block, "split": self.split}
        chosen = launch or (TILES if INTERPRETING else None)
        buckets = None if chosen is None else ((None, chosen),)
        return render_kernel("attention_blocks", TARGET[place], attributes, constants, buckets, dtype=self.dtype)

    def draw(self, tokens: int, place: str, seed: int) -> tuple[torch.Tensor, ...]:
        """q, k, v; strided as they lie in a fused projection."""
        heads = 2 * self.group
        fused = normal(tokens, heads + 4, self.dim, seed=seed, dtype=self.dtype, device=DEVICE[place])
        return fused[:, :heads], fused[:, heads : heads + 2], fused[:, heads + 2 :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """The keys and values of packed sequences in shuffled pages of a cache whose every other element is NaN."""

    k: torch.Tensor
    v: torch.Tensor
    table: torch.Tensor

    @staticmethod
    def store(k: torch.Tensor, v: torch.Tensor, bounds: list[int], page: int, seed: int) -> Paged:
        lengths = [end - start for start, end in pairwise(bounds)]
        wide = max(-(-n // page) for n in lengths) + 1
        order = torch.randperm(wide * len(lengths), generator=torch.Generator().manual_seed(seed))
        table = order.reshape(len(lengths), wide).to(k.device)
        cache = torch.full((len(order), 2, page, *k.shape[1:]), float("nan"), dtype=k.dtype, device=k.device)
        for row, (start, end) in zip(table, pairwise(bounds), strict=True):
            at = torch.arange(end - start, device=k.device)
            cache[row[at // page], 0, at % page] = k[start:end]
            cache[row[at // page], 1, at % page] = v[start:end]
        return Paged(k=cache[:, 0], v=cache[:, 1], table=table.to(torch.int32))

    def run(
        self, kernels: ModuleType, q: torch.Tensor, pieces: list[tuple[int, int, int]], rows: list[int]
    ) -> torch.Tensor:
        """`pieces` are (sequence, first, end) positions; `rows` the row of q at which each piece starts."""
        counts = [end - first for _, first, end in pieces]
        index = torch.cat([torch.arange(r, r + n) for r, n in zip(rows, counts, strict=True)])
        start = torch.tensor([0, *counts]).cumsum(0).to(torch.int32).to(q.device)
        lengths = torch.tensor([end for _, _, end in pieces], dtype=torch.int32, device=q.device)
        table = self.table[[sequence for sequence, _, _ in pieces]]
        with poisoned_outputs():
            return kernels.paged_attention(q[index.to(q.device)], self.k, self.v, table, start, lengths, max(counts))


def edges(length: int, *periods: int) -> list[int]:
    """Positions below `length` at and beside every multiple of the periods, the first few multiples and the last."""
    near = {m * p + d for p in periods for m in (0, 1, 2, length // p) for d in (-1, 0, 1)}
    return sorted(position for position in near | {length - 1} if 0 <= position < length)


def forms_agree(
    place: str, heads: Heads, lengths: list[int], page: int, seed: int, launch: Launch | None = None
) -> int:
    """Packed prefill against two chunks of every sequence and against single rows; how many values were compared."""
    kernels = heads.kernels(place, launch)
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = heads.draw(bounds[-1], place, seed)
    with poisoned_outputs():
        packed = kernels.attention(q, k, v, torch.tensor(bounds, dtype=torch.int32, device=q.device))
    paged = Paged.store(k, v, bounds, page, seed)
    used = [i for i, n in enumerate(lengths) if n]
    cuts = [int(integers(1, below=lengths[i] + 1, seed=seed + i)) for i in used]
    compared = 0
    for part in (0, 1):
        pieces = [(i, (0, cut)[part], (cut, lengths[i])[part]) for i, cut in zip(used, cuts, strict=True)]
        pieces = [piece for piece in pieces if piece[1] < piece[2]]
        order = integers(len(pieces), below=1 << 30, seed=seed + part).argsort().tolist()
        pieces = [pieces[o] for o in order]  # neighbours in another order than the packed batch
        chunks = paged.run(kernels, q, pieces, [bounds[i] + first for i, first, _ in pieces])
        rows = torch.cat([torch.arange(bounds[i] + first, bounds[i] + end) for i, first, end in pieces])
        assert_same_bits(chunks, packed[rows.to(q.device)], f"chunk {part}, page {page}, {heads}")
        compared += chunks.numel()
    singles = [(i, t, t + 1) for i in used for t in edges(lengths[i], heads.kv_block, heads.split, page)]
    rows = [bounds[i] + t for i, t, _ in singles]
    decoded = paged.run(kernels, q, singles, rows)
    assert_same_bits(decoded, packed[rows], f"single rows, page {page}, {heads}")
    alone = paged.run(kernels, q, singles[-1:], rows[-1:])
    assert_same_bits(alone, packed[rows[-1:]], f"a row alone, page {page}, {heads}")
    return compared + decoded.numel() + alone.numel()


def long_rows_agree(heads: Heads, length: int, seed: int) -> int:
    """One sequence of `length` keys on the GPU: prefill, chunks of 509 rows, and single rows at and beside the edge of
    every block and split, their neighbours drawn from the whole sequence."""
    kernels = heads.kernels("sm90")
    q, k, v = heads.draw(length, "sm90", seed)
    packed = kernels.attention(q, k, v, torch.tensor([0, length], dtype=torch.int32, device="cuda"))
    paged = Paged.store(k, v, [0, length], 16, seed)
    compared = 0
    for first in range(0, length, 509):
        end = min(first + 509, length)
        assert_same_bits(paged.run(kernels, q, [(0, first, end)], [first]), packed[first:end], f"chunk at {first}")
        compared += (end - first) * packed[0].numel()
    rows = sorted({s + d for s in range(0, length + 1, heads.kv_block) for d in (-1, 0, 1) if 0 <= s + d < length})
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    for first in range(0, len(rows), 256):
        some = [rows[o] for o in order[first : first + 256]]
        assert_same_bits(paged.run(kernels, q, [(0, t, t + 1) for t in some], some), packed[some], "single rows")
    return compared + len(rows) * packed[0].numel()


def lengths_around(heads: Heads) -> list[int]:
    """Empty and tiny sequences, and lengths at and beside a block and a split."""
    return [0, 1, 5, 0, *(p + d for p in (heads.kv_block, heads.split) for d in (-1, 0, 1))]


def count_laws() -> None:
    """How many values each form law compares here, by head size and form; raises at the first that differs."""
    for dim, kv_block, split, group, page in FORMS:
        heads = Heads(dim=dim, kv_block=kv_block, split=split, group=group)
        near = forms_agree("sm90" if HOPPER else "cpu", heads, lengths_around(heads), page, page)
        print(f"{heads}, page {page}: {near} values equal around every edge", flush=True)
    for dim in (64, 128, 256) if HOPPER else ():
        heads = Heads(dim=dim, kv_block=64, split=1024)
        print(f"{heads}: {long_rows_agree(heads, 32768 + 33, dim)} values equal to 32,801 keys", flush=True)
        for launch in LAUNCHES:
            equal = forms_agree("sm90", heads, [129, 3, 1500], 16, 8, launch)
            print(f"  {launch}: {equal} values equal", flush=True)
