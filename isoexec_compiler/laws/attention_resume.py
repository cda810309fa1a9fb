"""Attention of a whole sequence, of chunks against a paged cache, and of single rows is one function of a row."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from isoexec_compiler.law import Finding, Law
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.subject import Subject, outputs_differing

if TYPE_CHECKING:
    import torch

PAGES = (16, 48, 64)
LONG = (4097, 32768)


def _applies(kernel: Kernel, plan: Plan) -> bool:
    return kernel.op == "attention"


def _examine(subject: Subject) -> Finding:
    finding, block, split = Finding(), *(int(subject.kernel.constants[name]) for name in ("kv_block", "split"))
    edges = [0, 1, 5, 0, *(block + d for d in (-1, 0, 1))]
    batches = [edges]
    if subject.kernel.target != "cpu":
        batches += [[*edges, *(split + d for d in (-1, 0, 1))], *([length] for length in LONG)]
    done: dict[str, list[int]] = {}
    for number, lengths in enumerate(batches):
        for page in PAGES if len(lengths) > 1 and not subject.quick else PAGES[:1]:
            if subject.late() and done:
                break
            _compare(subject, finding, lengths, page, seed=number)
            done.setdefault(" ".join(map(str, lengths)), []).append(page)
    finding.control = "a cache whose last page holds another key"
    finding.domain = {"pages by lengths of the sequences": done, "chunks": "two or more a sequence, and single rows"}
    return finding


def _compare(subject: Subject, finding: Finding, lengths: list[int], page: int, seed: int) -> None:
    import torch

    attributes, draw = subject.kernel.attributes, subject.draw(seed)
    heads, groups, dim = (int(attributes[name]) for name in ("q_heads", "kv_heads", "head_dim"))
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    q, k, v = draw.normal(bounds[-1], heads + 2 * groups, dim).split((heads, groups, groups), 1)
    packed = subject.module.attention(q, k, v, torch.tensor(bounds, dtype=torch.int32, device=q.device))
    keys, values, table = _store(k, v, bounds, page, draw.seed)

    def paged(pieces: list[tuple[int, int, int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """What the cache gives for (sequence, first, end) pieces, and what the packed call gave."""
        rows = torch.cat([torch.arange(bounds[i] + first, bounds[i] + end) for i, first, end in pieces]).to(q.device)
        counts = [end - first for _, first, end in pieces]
        start = torch.tensor([0, *counts]).cumsum(0).to(q.device, torch.int32)
        ends = torch.tensor([end for *_, end in pieces], dtype=torch.int32, device=q.device)
        mine = table[[i for i, *_ in pieces]]
        found = subject.module.paged_attention(q[rows], keys, values, mine, start, ends, max(counts))
        return found, packed[rows]

    def count(pieces: list[tuple[int, int, int]]) -> None:
        found, expected = paged(pieces)
        finding.differing += outputs_differing((found,), (expected,))
        finding.compared += found.numel()

    used = [i for i, length in enumerate(lengths) if length]
    cut = {i: 1 + int(draw.integers(1, below=lengths[i])) for i in used}
    count([(i, 0, cut[i]) for i in reversed(used)])
    count([(i, cut[i], lengths[i]) for i in used if cut[i] < lengths[i]] or [(used[0], 0, lengths[used[0]])])
    singles = [(i, t, t + 1) for i in used for t in _edges(subject, lengths[i], page)]
    count(singles)
    count(singles[-1:])
    finding.fired["rows at block, split and page edges"] += len(singles)
    keys[table[used[-1]].long()] += 1
    finding.control_differing += outputs_differing(*((side,) for side in paged(singles[-1:])))


def _edges(subject: Subject, length: int, page: int) -> list[int]:
    """Positions below `length` at and beside multiples of the block, the split and the page, and the last one."""
    periods = (int(subject.kernel.constants["kv_block"]), int(subject.kernel.constants["split"]), page)
    near = {m * p + d for p in periods for m in (0, 1, 2, length // p) for d in (-1, 0, 1)}
    return sorted(position for position in near | {length - 1} if 0 <= position < length)


def _store(
    k: torch.Tensor, v: torch.Tensor, bounds: list[int], page: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of packed sequences in shuffled pages of a cache that is NaN wherever no key lies."""
    import torch

    lengths = [end - start for start, end in pairwise(bounds)]
    wide = max(-(-length // page) for length in lengths) + 1
    order = torch.randperm(wide * len(lengths), generator=torch.Generator().manual_seed(seed)).to(k.device)
    table = order.reshape(len(lengths), wide)
    cache = torch.full((len(order), 2, page, *k.shape[1:]), float("nan"), dtype=k.dtype, device=k.device)
    for row, start, end in zip(table, bounds[:-1], bounds[1:], strict=True):
        at = torch.arange(end - start, device=k.device)
        cache[row[at // page], 0, at % page] = k[start:end]
        cache[row[at // page], 1, at % page] = v[start:end]
    return cache[:, 0], cache[:, 1], table.to(torch.int32)


LAW = Law(
    name="attention_resume",
    doc="Packed prefill, chunks against a paged cache in shuffled pages, and single rows give the same bits, with "
    "sequence lengths at every block, split and page edge.",
    backs=("state", "equal_bits", "tolerance"),
    applies=_applies,
    examine=_examine,
)
