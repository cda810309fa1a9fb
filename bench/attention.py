"""Attention on a Hopper GPU: speed against flash attention, laws by count, and a sweep of the free launch parameters.

python -m bench.attention                    every row, saved as it comes to bench/results/dense_attention.json
python -m bench.attention --only "'paged'"   the cases whose text holds one of these
python -m bench.attention --tune             the sweep: times and equal bits over the launch parameters
python -m bench.attention --laws             how many values each law compared
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.attention_cases import QWEN3_5, QWEN3_8B, SMALL, Case, Shape, module, normal, step
from bench.harness import Row, graph, paired, row, write
from tests.support.ahead import compile_ahead

COLD_BYTES = 512 << 20
COPY_BYTES = 4.3e9  # bytes a millisecond, read and written, of a device-to-device copy on the H200
TENSOR_FLOPS = 780e9  # a millisecond, of a large bf16 matrix product there


def causal_flops(shape: Shape, lengths: tuple[int, ...]) -> float:
    """Operations of the two products of a causal forward."""
    return sum(2 * 2 * shape[0] * shape[2] * n * n / 2 for n in lengths)


def sdpa(backend: str, causal: bool) -> Callable[..., Any]:
    """torch's attention with one backend, as a function of q, k, v laid out [batch, T, heads, D]."""
    chosen = getattr(SDPBackend, backend)

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(chosen):
            out = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2), is_causal=causal, enable_gqa=True
            )
        return out.transpose(-3, -2)

    return run


def flash3(*tensors: Any, **others: Any) -> Any:
    """vLLM's causal FlashAttention 3."""
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(*tensors, causal=True, fa_version=3, **others)


@contextmanager
def tolerated(what: str) -> Iterator[None]:
    """A peer that a machine lacks, or a fault of ours, is printed: the other rows still stand."""
    try:
        yield
    except Exception as error:
        print(f"{what}: {type(error).__name__} {str(error)[-300:]}", flush=True)


def times(ours: Callable[[], Any], peer: Callable[[], Any], floor: float) -> tuple[float, float]:
    """Milliseconds of a call, in CUDA graphs; short calls are repeated in the graph, whose own launch takes 3 us."""
    repeats = 8 if floor < 0.1 else 1
    found = paired(graph(ours, repeats), graph(peer, repeats), 25 if floor < 2 else 8)
    return found[0] / repeats, found[1] / repeats


def prefill_rows(case: Case, goal: str) -> Iterator[Row]:
    """One packed batch of equal lengths against torch's flash and cuDNN attention and vLLM's FlashAttention 3."""
    inputs = case.inputs("cuda")
    batch, length = len(case.lengths), case.lengths[0]
    dense = [x.unflatten(0, (batch, -1)) for x in inputs[:3]]
    peers: dict[str, Callable[[], Any]] = {}
    for name, backend in (("torch flash", "FLASH_ATTENTION"), ("torch cudnn", "CUDNN_ATTENTION")):
        attention = sdpa(backend, True)
        peers[name] = step(attention, tuple(dense)) if case.kind == "train" else partial(attention, *dense)
    if case.kind == "prefill":
        q, k, v, bounds = inputs
        longest = {"max_seqlen_q": length, "max_seqlen_k": length}
        peers["vLLM flash 3"] = lambda: flash3(q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds, **longest)
    floor = causal_flops(case.shape, case.lengths) / TENSOR_FLOPS * (3.5 if case.kind == "train" else 1)
    for name, peer in peers.items():
        with tolerated(f"{case}, {name}"):
            found = times(case.call(inputs), peer, floor)
            heads = f"{case.shape[0]}/{case.shape[1]} heads of {case.shape[2]}"
            yield row(f"{case.kind} {heads}, {batch} x {length}", found[0], name, found[1], floor, goal)


def paged_rows(case: Case, goal: str) -> Iterator[Row]:
    """Chunks or decode steps against vLLM's FlashAttention 3 and, over keys that lie contiguous, torch's flash."""
    batch, rows, keys = case.lengths
    q_heads, kv_heads, head_dim = case.shape
    moved = batch * keys * kv_heads * head_dim * 4
    # Sets of inputs, so that together they are several times the L2.
    sets = [case.inputs("cuda") for _ in range(max(1, min(32, COLD_BYTES // moved)))]
    dense = [[normal(batch, keys, kv_heads, head_dim, device="cuda") for _ in range(2)] for _ in sets]
    flash = sdpa("FLASH_ATTENTION", False)  # rows of a chunk see all keys here: a little more work, none less

    def ours() -> None:
        for inputs in sets:
            case.call(inputs)()

    def contiguous() -> None:
        for inputs, (k, v) in zip(sets, dense, strict=True):
            flash(inputs[0].unflatten(0, (batch, rows)), k, v)

    def paged() -> None:
        longest = {"max_seqlen_q": rows, "max_seqlen_k": keys}
        for q, k, v, table, start, lengths, _ in sets:
            flash3(q, k, v, cu_seqlens_q=start, seqused_k=lengths, block_table=table, **longest)

    bytes_, operations = moved / COPY_BYTES, 4 * q_heads * head_dim * batch * rows * (keys - rows / 2) / TENSOR_FLOPS
    name = f"paged {q_heads}/{kv_heads} heads of {head_dim}, {batch} x {rows} rows on {keys} keys"
    for what, peer in (("vLLM flash 3", paged), ("torch flash", contiguous)):
        with tolerated(f"{case}, {what}"):
            with torch.no_grad():
                found = [t / len(sets) for t in paired(graph(ours), graph(peer))]
            yield row(name, found[0], what, found[1], max(bytes_, operations), goal)


PREFILL = "<= 1.15 of flash"
TRAIN = "<= 1.05 of stock"
DECODE = "floor >= 80 % of ours"


def timed_cases() -> list[tuple[Case, str]]:
    """What is timed, with its goal; what decides a change comes first."""
    decode = [(16, 2048), (64, 2048), (16, 16384), (128, 16384)]
    prefill = [(QWEN3_8B, (4096,)), (SMALL, (4096,)), (QWEN3_5, (4096,)), (QWEN3_8B, (16384,)), (QWEN3_8B, (1024,) * 8)]
    cases = [(Case(kind="paged", shape=QWEN3_8B, lengths=(b, 1, n)), DECODE) for b, n in decode]
    cases += [(Case(kind="paged", shape=s, lengths=(32, 1, 8192)), DECODE) for s in (SMALL, QWEN3_5)]
    cases += [(Case(kind="prefill", shape=s, lengths=n), PREFILL) for s, n in prefill]
    cases += [(Case(kind="train", shape=s, lengths=(4096,)), TRAIN) for s in (QWEN3_8B, SMALL, QWEN3_5)]
    cases += [(Case(kind="paged", shape=QWEN3_8B, lengths=(1, 512, 16384)), PREFILL)]
    cases += [
        (Case(kind="prefill", shape=s, lengths=(n,)), PREFILL)
        for s in (QWEN3_8B, SMALL, QWEN3_5)
        for n in (1024, 8192, 32768)
    ]
    more = product((1, 32, 128), (2048, 8192))
    return cases + [(Case(kind="paged", shape=QWEN3_8B, lengths=(b, 1, n)), DECODE) for b, n in more]


def measure(only: list[str]) -> None:
    """Times every case whose text holds one of `only`, if any; prints and saves each row as it comes."""
    cases = [(case, goal) for case, goal in timed_cases() if not only or any(part in str(case) for part in only)]
    for case, _ in cases:
        module(case.shape)
    compile_ahead([case.compiled for case, _ in cases])
    rows: list[Row] = []
    for case, goal in cases:
        for found in (paged_rows if case.kind == "paged" else prefill_rows)(case, goal):
            print(*found.values(), flush=True)
            rows.append(found)
        torch.cuda.empty_cache()
        write("dense_attention" + "_part" * bool(only), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[])
    for name in ("tune", "laws"):
        parser.add_argument(f"--{name}", action="store_true")
    chosen = parser.parse_args()
    if chosen.laws:
        from tests.laws.attention_forms import count_laws

        count_laws()
    elif chosen.tune:
        from bench.attention_sweep import tune

        tune()
    else:
        measure(chosen.only)


if __name__ == "__main__":
    main()
