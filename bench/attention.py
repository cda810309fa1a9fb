"""Attention on a Hopper GPU: speed against flash attention, laws by count, and a sweep of the free launch parameters.

python bench/attention.py            every row, saved to bench/results/dense_attention.json
python bench/attention.py --quick    the rows that decide a change
python bench/attention.py --tune     the sweep: times and equal bits over the launch parameters
python bench/attention.py --laws     how many values each law compared
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness import Row, graph, once, paired, row, save

COPY_BYTES = 4.3e9  # bytes a millisecond, read and written, of a device-to-device copy on the H200
TENSOR_FLOPS = 780e9  # a millisecond, of a large bf16 matrix product there
PAGE = 16
Shape = tuple[int, int, int]  # query heads, key heads, head_dim
QWEN3_8B: Shape = (32, 8, 128)
SMALL: Shape = (32, 8, 64)
QWEN3_5: Shape = (16, 2, 256)


@cache
def module(shape: Shape, launch: tuple[tuple[str, Any], ...] | None = None) -> ModuleType:
    """The rendered kernels for these heads: the recommended launch, or one bucket with these parameters."""
    from tests.support.rendering import render_kernel

    if "ISOEXEC_TILES" in os.environ and (launch is None or launch[0][1] != "tiles"):
        launch = next(x for x in variants("prefill") if x[0][1] == "tiles")
    q_heads, kv_heads, head_dim = shape
    attributes = {
        "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "scale": head_dim**-0.5, "causal": True,
    }  # fmt: skip
    chosen = None if launch is None else ((None, dict(launch)),)
    return render_kernel("attention_blocks", "sm90", attributes, launch=chosen)


def normal(*size: int, device: str) -> Any:
    """Fresh bf16 draws; nothing is drawn where kernels are only compiled."""
    import torch

    make = torch.empty if device == "cpu" else torch.randn
    return make(*size, device=device, dtype=torch.bfloat16)


def prefill_inputs(shape: Shape, lengths: tuple[int, ...], device: str) -> tuple[Any, ...]:
    """q, k, v, cu_seqlens of packed sequences."""
    import torch

    q_heads, kv_heads, head_dim = shape
    bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(device)
    sizes = ((sum(lengths), heads, head_dim) for heads in (q_heads, kv_heads, kv_heads))
    return *(normal(*size, device=device) for size in sizes), bounds


def paged_inputs(shape: Shape, batch: int, rows: int, keys: int, device: str) -> tuple[Any, ...]:
    """Arguments of `paged_attention`: `rows` rows of `batch` sequences against `keys` keys in shuffled pages."""
    import torch

    q_heads, kv_heads, head_dim = shape
    wide = -(-keys // PAGE)
    pages = batch * wide if device != "cpu" else 2
    cache_k, cache_v = normal(2, pages, PAGE, kv_heads, head_dim, device=device)
    table = torch.randperm(pages, device=device, dtype=torch.int32).reshape(batch, wide) if device != "cpu" else (
        torch.zeros(batch, wide, dtype=torch.int32)
    )  # fmt: skip
    start = torch.arange(batch + 1, device=device, dtype=torch.int32) * rows
    lengths = torch.full((batch,), keys, device=device, dtype=torch.int32)
    return normal(batch * rows, q_heads, head_dim, device=device), cache_k, cache_v, table, start, lengths, rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: `prefill` (packed `lengths`), `train` (with its backward) or `paged` (`lengths`: batch, rows, keys)."""

    kind: str
    shape: Shape
    lengths: tuple[int, ...]
    launch: tuple[tuple[str, Any], ...] | None = None

    def inputs(self, device: str) -> tuple[Any, ...]:
        if self.kind == "paged":
            return paged_inputs(self.shape, *self.lengths, device)
        return prefill_inputs(self.shape, self.lengths, device)

    def call(self, inputs: tuple[Any, ...]) -> Callable[[], Any]:
        kernels = module(self.shape, self.launch)
        if self.kind == "paged":
            return lambda: kernels.paged_attention(*inputs)
        if self.kind == "prefill":
            return lambda: kernels.attention(*inputs)
        return step(lambda q, k, v: kernels.attention(q, k, v, inputs[3]), inputs[:3])


def step(attention: Callable[..., Any], tensors: tuple[Any, ...]) -> Callable[[], Any]:
    """Forward and backward of `attention` over `tensors` for one fixed gradient."""
    import torch

    leaves = [x.detach().requires_grad_() for x in tensors]
    gradient = torch.ones_like(leaves[0])
    return lambda: torch.autograd.grad(attention(*leaves), leaves, gradient)


def _compile(case: Case) -> str:
    from tests.support.ptx import compiled_launches

    try:
        with compiled_launches():
            case.call(case.inputs("cpu"))()
    except Exception as error:  # reported with its case: one variant that does not compile must not end the sweep
        return f"{case}: {type(error).__name__} {str(error)[-300:]}"
    return ""


def compile_ahead(cases: list[Case]) -> None:
    """Compile the kernels of every case in processes of their own: Triton's cache is then warm."""
    begin = time.time()
    for case in cases:
        module(case.shape, case.launch)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("fork")) as pool:
        for failure in filter(None, pool.map(_compile, cases)):
            print(failure)
    print(f"compiled {len(cases)} cases in {time.time() - begin:.0f} s", flush=True)


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


def variants(kind: str) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The launch parameters worth trying for prefill or for decode."""
    names = ("schedule", "block_m", "num_warps", "num_stages", "programs")
    if kind == "paged":
        values = chain(
            product(("warp_specialised",), (64,), (4,), (2, 3, 4, 6), (0, 132, 264, 396, 528)),
            product(("tiles",), (16,), (4,), (3, 4), (0, 264, 528)),
        )
    else:
        values = chain(
            product(("warp_specialised",), (128,), (4,), (2, 3, 4, 6), (0,)),
            product(("tiles",), (128,), (8,), (2, 3), (0,)),
        )
    for chosen in values:
        yield tuple(zip(names, chosen, strict=True))


def tune() -> None:
    """Times of every variant, and whether its bits are those of the first."""
    import torch

    from tests.support.bits import differing

    places = [("prefill", shape, (4096,)) for shape in (QWEN3_8B, SMALL, QWEN3_5)]
    places += [("paged", QWEN3_8B, (b, 1, n)) for b, n in ((16, 2048), (64, 4096), (16, 16384))]
    places += [("paged", shape, (32, 1, 8192)) for shape in (SMALL, QWEN3_5)]
    cases = [
        [Case(kind=kind, shape=shape, lengths=lengths, launch=launch) for launch in variants(kind)]
        for kind, shape, lengths in places
    ]
    compile_ahead([case for group in cases for case in group])
    for group in cases:
        print(group[0].kind, group[0].shape, group[0].lengths, flush=True)
        inputs, first, found = group[0].inputs("cuda"), None, []
        for case in group:
            try:
                call = case.call(inputs)
                out = call()
                first = out if first is None else first
                moved = differing(first, out)
                run = graph(call, 5) if case.kind == "paged" else call
                times = sorted(once(run) for _ in range(7))
            except Exception as error:  # out of shared memory, say: that is a result of the sweep
                print("  ", dict(case.launch or ()), type(error).__name__, str(error)[:100])
                torch.cuda.synchronize()
                continue
            found.append((times[3] / (5 if case.kind == "paged" else 1), moved, dict(case.launch or ())))
        for milliseconds, moved, launch in sorted(found, key=lambda item: item[0])[:12]:
            print(f"  {milliseconds:.4f} ms, {moved} bits moved, {launch}")
        print(f"  {len(found)} variants, {sum(moved > 0 for _, moved, _ in found)} moved bits", flush=True)


def probe() -> None:
    """Both schedules on one small call: equal bits, or a hang that only this process feels."""
    import torch

    from tests.support.bits import differing

    for shape in (QWEN3_8B, SMALL, QWEN3_5):
        inputs = prefill_inputs(shape, (700, 33, 1500), "cuda")
        launches = (None, next(x for x in variants("prefill") if x[0][1] == "tiles"))
        outs = [module(shape, launch).attention(*inputs) for launch in launches]
        torch.cuda.synchronize()
        paged = paged_inputs(shape, 5, 1, 5000, "cuda")
        outs += [module(shape, launch).paged_attention(*paged) for launch in launches]
        torch.cuda.synchronize()
        print("probe", shape, differing(*outs[:2]), differing(*outs[2:]), "differing", flush=True)
        gradients = []
        for launch in launches:
            leaves = [x.detach().requires_grad_() for x in inputs[:3]]
            out = module(shape, launch).attention(*leaves, inputs[3])
            gradients.append(torch.autograd.grad(out, leaves, inputs[0]))
            torch.cuda.synchronize()
        apart = [float((a - b).float().norm() / b.float().norm()) for a, b in zip(*gradients, strict=True)]
        print("  gradients apart by", apart, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("quick", "tune", "laws", "probe"):
        parser.add_argument(f"--{name}", action="store_true")
    chosen = parser.parse_args()
    if chosen.probe:
        probe()
        return
    try:
        print(subprocess.run([sys.executable, __file__, "--probe"], timeout=120))
    except subprocess.TimeoutExpired:
        print("the warp-specialised schedule hangs")
        os.environ["ISOEXEC_TILES"] = "1"
    if chosen.laws:
        from tests.laws.attention_forms import count_laws

        count_laws()
    elif chosen.tune:
        tune()
    else:
        save("dense_attention_quick" if chosen.quick else "dense_attention", measure(chosen.quick))


if __name__ == "__main__":
    main()
