"""Attention on a Hopper GPU: speed against flash attention, laws by count, and a sweep of the free launch parameters.

python bench/attention.py            every row, saved to bench/results/dense_attention.json
python bench/attention.py --quick    the rows that decide a change
python bench/attention.py --tune     the sweep: times and equal bits over the launch parameters
python bench/attention.py --laws     how many values each law compared
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.attention_cases import QWEN3_5, QWEN3_8B, SMALL, Case, Shape, compile_ahead, normal, step
from bench.harness import Row, graph, paired, row, save

COPY_BYTES = 4.3e9  # bytes a millisecond, read and written, of a device-to-device copy on the H200
TENSOR_FLOPS = 780e9  # a millisecond, of a large bf16 matrix product there


def causal_flops(shape: Shape, lengths: tuple[int, ...]) -> float:
    """Operations of the two products of a causal forward."""
    return sum(2 * 2 * shape[0] * shape[2] * n * n / 2 for n in lengths)


def sdpa(backend: str, causal: bool) -> Callable[..., Any]:
    """torch's attention with one backend, as a function of q, k, v laid out [batch, T, heads, D]."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = getattr(SDPBackend, backend)

    def run(q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(chosen):
            out = torch.nn.functional.scaled_dot_product_attention(
                q.transpose(-3, -2), k.transpose(-3, -2), v.transpose(-3, -2), is_causal=causal, enable_gqa=True
            )
        return out.transpose(-3, -2)

    return run


def prefill_rows(case: Case, goal: str) -> Iterator[Row]:
    """One packed batch of equal lengths against torch's flash and cuDNN attention."""
    inputs = case.inputs("cuda")
    batch = len(case.lengths)
    dense = [x.unflatten(0, (batch, -1)) for x in inputs[:3]]
    ours = case.call(inputs)
    floor = causal_flops(case.shape, case.lengths) / TENSOR_FLOPS * (3.5 if case.kind == "train" else 1)
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION"):
        attention = sdpa(backend, True)
        peer = step(attention, tuple(dense)) if case.kind == "train" else lambda run=attention: run(*dense)
        try:
            times = paired(graph(ours), graph(peer))
        except RuntimeError as error:
            print(f"{backend}: {str(error)[:120]}")
            continue
        name = f"{case.kind} {case.shape[0]}/{case.shape[1]} heads of {case.shape[2]}, {batch} x {case.lengths[0]}"
        yield row(name, times[0], f"torch {backend.split('_')[0].lower()}", times[1], floor, goal)


def paged_rows(case: Case, goal: str) -> Iterator[Row]:
    """Chunks or decode steps in one CUDA graph, against torch's flash attention over keys that lie contiguous."""
    import torch

    batch, rows, keys = case.lengths
    q_heads, kv_heads, head_dim = case.shape
    inputs = case.inputs("cuda")
    k, v = (normal(batch, keys, kv_heads, head_dim, device="cuda") for _ in range(2))
    q = inputs[0].unflatten(0, (batch, rows))
    run = sdpa("FLASH_ATTENTION", False)  # rows of a chunk see all keys here: a little more work, none less
    with torch.no_grad():
        times = paired(graph(case.call(inputs)), graph(lambda: run(q, k, v)))
    floor = max(
        batch * keys * kv_heads * head_dim * 4 / COPY_BYTES,
        4 * q_heads * head_dim * batch * rows * (keys - rows / 2) / TENSOR_FLOPS,
    )
    name = f"paged {q_heads}/{kv_heads} heads of {head_dim}, {batch} x {rows} rows on {keys} keys"
    yield row(name, times[0], "torch flash", times[1], floor, goal)


def flash3_rows(case: Case, goal: str) -> Iterator[Row]:
    """The same paged call through vLLM's FlashAttention 3, where it is installed."""
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return
    _, rows, keys = case.lengths
    inputs = case.inputs("cuda")
    q, cache_k, cache_v, table, start, lengths, _ = inputs

    def peer() -> Any:
        return flash_attn_varlen_func(
            q, cache_k, cache_v, max_seqlen_q=rows, cu_seqlens_q=start, max_seqlen_k=keys, seqused_k=lengths,
            block_table=table, causal=True, fa_version=3,
        )  # fmt: skip

    times = paired(graph(case.call(inputs)), graph(peer))
    yield row(f"paged {case.shape}, {case.lengths}", times[0], "vLLM flash 3", times[1], None, goal)


PREFILL = "<= 1.15 of flash"
TRAIN = "<= 1.05 of stock"
DECODE = "floor >= 80 % of ours"


def timed_cases(quick: bool) -> list[tuple[Case, str]]:
    """What is timed, with its goal."""
    prefill = [(QWEN3_8B, (4096,)), (SMALL, (4096,)), (QWEN3_5, (4096,)), (QWEN3_8B, (16384,)), (QWEN3_8B, (1024,) * 8)]
    decode = [(16, 2048), (64, 2048), (16, 16384), (128, 16384)]
    if not quick:
        prefill += [(shape, (length,)) for shape in (QWEN3_8B, SMALL, QWEN3_5) for length in (1024, 8192, 32768)]
        decode += list(product((1, 32, 128), (2048, 8192)))
    cases = [(Case(kind="prefill", shape=s, lengths=n), PREFILL) for s, n in prefill]
    cases += [(Case(kind="train", shape=s, lengths=(4096,)), TRAIN) for s in (QWEN3_8B, SMALL, QWEN3_5)]
    cases += [(Case(kind="paged", shape=QWEN3_8B, lengths=(b, 1, n)), DECODE) for b, n in decode]
    cases += [(Case(kind="paged", shape=s, lengths=(32, 1, 8192)), DECODE) for s in (SMALL, QWEN3_5)]
    cases += [(Case(kind="paged", shape=QWEN3_8B, lengths=(1, 512, 16384)), PREFILL)]
    return cases


def measure(quick: bool) -> list[Row]:
    cases = timed_cases(quick)
    compile_ahead([case for case, _ in cases])
    rows: list[Row] = []
    for case, goal in cases:
        makers = (paged_rows, flash3_rows) if case.kind == "paged" else (prefill_rows,)
        for maker in makers:
            try:
                rows += maker(case, goal)
            except Exception as error:  # a peer that a machine lacks, or a fault of ours: the other rows still stand
                print(f"{case}: {type(error).__name__} {str(error)[-300:]}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("quick", "tune", "laws"):
        parser.add_argument(f"--{name}", action="store_true")
    chosen = parser.parse_args()
    if chosen.laws:
        from tests.laws.attention_forms import count_laws

        count_laws()
    elif chosen.tune:
        from bench.attention_sweep import tune

        tune()
    else:
        save("dense_attention_quick" if chosen.quick else "dense_attention", measure(chosen.quick))


if __name__ == "__main__":
    main()
