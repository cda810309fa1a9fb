"""A decode step and a trainer layer of a dense contract against stock kernels.

python -m bench.step                     every row, saved as it comes to bench/results/dense_step.json
python -m bench.step --only 16x2048      rows whose name contains one of these
python -m bench.step --regions 16x2048   what each region gives: the stock layers with that one of ours, saved nowhere

A decode step is measured as 4 layers with weights and caches of their own, so that L2 is cold, and as its ends
(embedding, final norm, head, log-probabilities), each one CUDA graph; the step of the whole model is layers / 4 of the
one plus the other. The trainer layer is one forward and backward of 4,096 tokens.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F  # noqa: N812

from bench import harness
from bench.dense_ahead import decoding, training
from bench.dense_layer import (
    GENERATED,
    PAGE,
    Pair,
    Regions,
    Tensor,
    Tensors,
    draw,
    heads,
    kernel,
    our_training,
    ours,
    shape,
    weights,
)
from bench.dense_stock import stock, stock_training
from tests.support.ahead import compile_ahead

LAYERS = 4
COPIED_BYTES_PER_MS = 4.18e9  # of a device-to-device copy, read and written
TENSOR_MACS_PER_MS = 3.95e11
SIZES = tuple(product((1, 16, 128), (2048, 16384)))
TOKENS = 4096
BACKENDS = {"stock, flash": "FLASH_ATTENTION", "stock, cuDNN attention": "CUDNN_ATTENTION"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A decode batch: one row a sequence, every sequence `keys` long, pages in random order."""

    size: int
    keys: int
    positions: Tensor
    starts: Tensor
    lengths: Tensor
    table: Tensor


def batch(size: int, keys: int) -> Batch:
    pages = keys // PAGE
    return Batch(
        size=size,
        keys=keys,
        positions=torch.full((size,), keys - 1, device="cuda"),
        starts=torch.arange(size + 1, device="cuda", dtype=torch.int32),
        lengths=torch.full((size,), keys, device="cuda", dtype=torch.int32),
        table=torch.randperm(size * pages, device="cuda", dtype=torch.int32).view(size, pages),
    )


def layer(regions: Regions, b: Batch, w: Tensors, cache: Pair, x: Tensor, r: Tensor) -> Pair:
    """One decode layer; what it adds to r is given back beside r."""
    x, r = regions.add_norm(x, r, w["attn_norm"])
    q, k, _ = heads(regions.qkv(x, w["qkv"]))
    q, _ = regions.turn(q, k, w, b.positions)
    x = regions.attend(q, cache, b.table, b.starts, b.lengths, b.keys)
    x, r = regions.add_norm(regions.attn_out(x.flatten(1), w["attn_out"]), r, w["mlp_norm"])
    return regions.down(regions.act(regions.gate_up(x, w["gate_up"])), w["down"]), r


def stack(size: int, keys: int) -> Callable[[Regions], None]:
    """`LAYERS` layers with weights and caches of their own, as a function of their regions."""
    s, b = shape(), batch(size, keys)
    pages = size * keys // PAGE
    own = [
        (weights(), (draw(pages, PAGE, s.kv_heads, s.head_dim), draw(pages, PAGE, s.kv_heads, s.head_dim)))
        for _ in range(LAYERS)
    ]
    first = draw(size, s.hidden)

    def run(regions: Regions) -> None:
        x, r = first.clone(), first.clone()
        for w, cache in own:
            x, r = layer(regions, b, w, cache, x, r)

    return run


def ends(size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Ours and stock: embedding, final norm, head and log-probability of one token a sequence."""
    s = shape()
    table, ids = draw(s.vocab, s.hidden, scale=s.hidden**-0.5), torch.arange(size, device="cuda")
    gamma = torch.ones(s.hidden, device="cuda", dtype=torch.bfloat16)

    def our_ends() -> object:
        x = kernel("final_norm").rms_norm(kernel("embed").embedding(ids, table), gamma)
        return kernel("logprobs").token_logprobs(kernel("head").matmul(x, table), ids)

    def stock_ends() -> object:
        rows = F.embedding(ids, table)
        x = torch.empty_like(rows)
        torch.ops._C.rms_norm(x, rows, gamma, s.eps)
        return torch.log_softmax(F.linear(x, table).float(), -1).gather(1, ids[:, None])

    return our_ends, stock_ends


@torch.no_grad()
def decode(size: int, keys: int) -> Iterator[harness.Row]:
    s, name = shape(), f"decode, {size}x{keys}"
    run = stack(size, keys)
    layers = harness.paired(harness.graph(partial(run, ours())), harness.graph(partial(run, stock())))
    del run
    torch.cuda.empty_cache()
    tips = harness.paired(*map(harness.graph, ends(size)))
    moved = 2 * s.size + 4 * size * keys * s.kv_heads * s.head_dim
    floors = [bytes_ / COPIED_BYTES_PER_MS for bytes_ in (moved, 2 * s.vocab * s.hidden)]
    whole = [layer * s.layers / LAYERS + end for layer, end in zip(layers, tips, strict=True)]
    yield harness.row(
        f"{name}: the step of {s.layers} layers", whole[0], "stock", whole[1], s.layers * floors[0] + floors[1],
        "<= 1.02",
    )  # fmt: skip
    yield harness.row(f"{name}: {LAYERS} layers", layers[0], "stock", layers[1], LAYERS * floors[0], "")
    yield harness.row(f"{name}: ends", tips[0], "stock", tips[1], floors[1], "")


@torch.no_grad()
def exchange(size: int, keys: int) -> Iterator[harness.Row]:
    """The stock layers with one region of ours each, against the stock layers."""
    run = stack(size, keys)
    peer = harness.graph(partial(run, stock()))
    for changed in (*([field.name] for field in fields(Regions)), [field.name for field in fields(Regions)]):
        mixed = replace(stock(), **{region: getattr(ours(), region) for region in changed})
        times = harness.paired(harness.graph(partial(run, mixed)), peer, rounds=15)
        name = f"decode, {size}x{keys}, {LAYERS} layers: ours is {changed[0] if len(changed) == 1 else 'all'}"
        yield harness.row(name, times[0], "stock", times[1], None, "")


def trainer(regions: Regions) -> Callable[[], None]:
    """Forward and backward of one layer."""
    s, w = shape(), weights(grad=True)
    x, passed = draw(TOKENS, s.hidden, grad=True), draw(TOKENS, s.hidden)
    added = draw(TOKENS, s.hidden, grad=True)
    positions = torch.arange(TOKENS, device="cuda")
    starts = torch.tensor([0, TOKENS], device="cuda", dtype=torch.int32)

    def run() -> None:
        y, r = regions.add_norm(added, x, w["attn_norm"])
        q, k, v = heads(regions.qkv(y, w["qkv"]))
        q, k = regions.turn(q, k, w, positions)
        y = regions.attend(q, k, v, starts)
        y, r = regions.add_norm(regions.attn_out(y.flatten(1), w["attn_out"]), r, w["mlp_norm"])
        y = regions.down(regions.act(regions.gate_up(y, w["gate_up"])), w["down"])
        torch.autograd.backward((y, r), (passed, passed))

    return run


def train(peer: str) -> Iterator[harness.Row]:
    mine, other = trainer(our_training()), trainer(stock_training(BACKENDS[peer], TOKENS))
    times = harness.paired(mine, other, rounds=20)
    name = f"trainer layer, {TOKENS} tokens, forward and backward"
    yield harness.row(name, times[0], peer, times[1], 3 * TOKENS * shape().size / TENSOR_MACS_PER_MS, "<= 1.05")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names: train, 16x2048, ...")
    parser.add_argument("--regions", nargs="+", help="batches, as 16x2048, whose regions are exchanged one by one")
    arguments = parser.parse_args()
    sys.path.insert(0, str(GENERATED))
    with torch.no_grad():
        lengths = sorted({keys for _, keys in SIZES})
        calls = [call for size in sorted({size for size, _ in SIZES}) for call in decoding(size, lengths)]
        compile_ahead([*training(TOKENS), *calls])
    import vllm._C_stable_libtorch  # noqa: F401

    makers = {f"{size}x{keys}": partial(decode, size, keys) for size, keys in SIZES}
    makers |= {f"train {peer}": partial(train, peer) for peer in BACKENDS}
    if arguments.regions:
        makers = {name: partial(exchange, *map(int, name.split("x"))) for name in arguments.regions}
    rows: list[harness.Row] = []
    for name, maker in makers.items():
        if arguments.only and not any(part in name for part in arguments.only):
            continue
        for row in maker():
            print(*row.values(), flush=True)
            rows.append(row)
        torch.cuda.empty_cache()
        if not arguments.regions:
            harness.write("dense_step" + "_part" * bool(arguments.only), rows)


if __name__ == "__main__":
    main()
