"""Row-wise kernels against vLLM's and torch's: `python -m bench.rowwise [--quick]`. Inputs rotate: L2 is cold.

All of these move bytes: the goal is 85 % of the copy bandwidth that this run measures, wherever a call is long enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from bench import harness
from isoexec_compiler.registry import Value, Values
from tests.support.rendering import render_kernel

L2_BYTES = 60 << 20
GRAPH_MS = 1.0
Call = Callable[[int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: ours and a peer's on input set i of `copies`, and the bytes that no version can avoid moving."""

    name: str
    ours: Call
    peer: Call
    what: str
    moved: int
    copies: int


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32).to(dtype)


def sets(moved: int) -> int:
    """Input sets, so that together they are several times the L2."""
    return max(2, min(64, 4 * L2_BYTES // max(moved, 1)))


def buckets(launch: Values | None) -> tuple[tuple[None, Values], ...] | None:
    return None if launch is None else ((None, launch),)


def norms(rows: int, width: int, launch: Values | None = None) -> Iterator[Case]:
    kernel = render_kernel(
        "rms_norm_rows", "sm90", {"width": width, "eps": 1e-6, "gamma": "plain"}, launch=buckets(launch)
    )
    weight = draw(width)
    one = rows * width * 2
    label = "" if launch is None else " " + " ".join(f"{k} {v}" for k, v in launch.items())
    x, r, out = ([draw(rows, width) for _ in range(sets(2 * one))] for _ in range(3))
    yield Case(
        name=f"rms_norm {rows}x{width}{label}",
        ours=lambda i: kernel.rms_norm(x[i], weight),
        peer=lambda i: torch.ops._C.rms_norm(out[i], x[i], weight, 1e-6),
        what="vLLM rms_norm",
        moved=2 * one,
        copies=len(x),
    )
    yield Case(
        name=f"add_rms_norm {rows}x{width}{label}",
        ours=lambda i: kernel.add_rms_norm(x[i], r[i], weight),
        peer=lambda i: torch.ops._C.fused_add_rms_norm(out[i], r[i], weight, 1e-6),  # in place
        what="vLLM fused_add_rms_norm",
        moved=4 * one,
        copies=len(x),
    )


def silu(rows: int, width: int) -> Case:
    kernel = render_kernel("silu_gate_rows", "sm90", {"width": width})
    moved = 3 * rows * width * 2
    x = [draw(rows, 2 * width) for _ in range(sets(moved))]
    out = draw(rows, width)
    return Case(
        name=f"silu_gate {rows}x{width}",
        ours=lambda i: kernel.silu_gate(x[i]),
        peer=lambda i: torch.ops._C.silu_and_mul(out, x[i]),
        what="vLLM silu_and_mul",
        moved=moved,
        copies=len(x),
    )


def rotary(rows: int, heads: int, kv_heads: int) -> Case:
    attributes: dict[str, Value] = {"head_dim": 128, "rotary_dim": 128, "theta": 1e6, "max_positions": 40960}
    kernel = render_kernel("rotary_table", "sm90", attributes)
    moved = 2 * rows * (heads + kv_heads) * 128 * 2
    q, k = ([draw(rows, count, 128) for _ in range(sets(moved))] for count in (heads, kv_heads))
    positions = torch.randint(0, 40960, (rows,), device="cuda")
    table = kernel.table(40960, positions.device).transpose(1, 2).flatten(1).bfloat16()
    turned = [(one.flatten(1).clone(), other.flatten(1).clone()) for one, other in zip(q, k, strict=True)]
    return Case(
        name=f"rotary {rows}x({heads}+{kv_heads})x128",
        ours=lambda i: kernel.rotary(q[i], k[i], positions),
        peer=lambda i: torch.ops._C.rotary_embedding(positions, *turned[i], 128, table, True),  # in place
        what="vLLM rotary_embedding",
        moved=moved,
        copies=len(q),
    )


def log_softmax(rows: int, vocab: int, launch: Values | None = None) -> Iterator[Case]:
    kernel = render_kernel(
        "log_softmax_leaves",
        "sm90",
        {"vocab": vocab, "padded_vocab": vocab, "temperature": 1.0},
        launch=buckets(launch),
    )
    one = rows * vocab * 4
    label = "" if launch is None else " " + " ".join(f"{k} {v}" for k, v in launch.items())
    x = [draw(rows, vocab, dtype=torch.float32) for _ in range(max(2, min(16, sets(one))))]
    targets = torch.randint(0, vocab, (rows,), device="cuda")
    yield Case(
        name=f"token_logprobs {rows}x{vocab}{label}",
        ours=lambda i: kernel.token_logprobs(x[i], targets),
        peer=lambda i: torch.log_softmax(x[i], -1).gather(1, targets[:, None]),
        what="torch log_softmax, gather",
        moved=one,
        copies=len(x),
    )
    yield Case(
        name=f"log_softmax {rows}x{vocab}{label}",
        ours=lambda i: kernel.log_softmax(x[i]),
        peer=lambda i: torch.log_softmax(x[i], -1),
        what="torch log_softmax",
        moved=2 * one,
        copies=len(x),
    )


def copy_bandwidth() -> float:
    """Bytes read and written per millisecond by a large device copy."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    target.copy_(source)
    times = sorted(harness.once(lambda: target.copy_(source)) for _ in range(20))
    return 2 * source.numel() / times[10]


def cases(quick: bool) -> Iterator[Case]:
    for rows in (16, 8192):
        for width in (2048, 4096):
            yield from norms(rows, width)
    yield from norms(8192 * 32, 128)
    if quick:
        for rows, warps in ((1, 2), (1, 4), (2, 4), (2, 8), (4, 8)):
            yield from norms(8192, 4096, {"rows": rows, "num_warps": warps})
        for schedule, stages, warps in (("leaves", 1, 4), ("leaves", 3, 4), ("cluster", 1, 4), ("cluster", 1, 8)):
            launch: Values = {
                "schedule": schedule, "token_schedule": schedule, "num_warps": 4, "finish_block": 1024,
                "stages": stages, "cluster_warps": warps,
            }  # fmt: skip
            yield from log_softmax(1024, 151936, launch)
    for rows in (16, 8192):
        yield silu(rows, 12288)
        yield rotary(rows, 32, 8)
    for rows in (1, 16, 128, 2048):
        for vocab in (151936, 248320):
            yield from log_softmax(rows, vocab)


def measure(case: Case) -> tuple[float, float]:
    """Milliseconds of one call of ours and of the peer's, in graphs so long that their own launch does not count."""

    def graph(call: Call, repeats: int) -> Callable[[], None]:
        def every() -> None:
            for i in range(case.copies):
                call(i)

        return harness.graph(every, repeats)

    single = graph(case.ours, 1)
    single()
    repeats = max(1, round(GRAPH_MS / harness.once(single)))
    mine, theirs = harness.paired(graph(case.ours, repeats), graph(case.peer, repeats), rounds=15)
    return mine / (case.copies * repeats), theirs / (case.copies * repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with other launches beside the recommended ones")
    arguments = parser.parse_args()
    import vllm._C_stable_libtorch  # noqa: F401

    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e9:.2f} TB/s")
    rows = []
    with torch.no_grad():
        for case in cases(arguments.quick):
            mine, theirs = measure(case)
            floor = case.moved / bandwidth
            rows.append(harness.row(case.name, mine, case.what, theirs, floor, "floor/ours >= 0.85"))
            print(f"{floor / mine:5.2f} of the floor's rate ", *rows[-1].values(), flush=True)
            torch.cuda.empty_cache()
    harness.save("dense_rowwise" + "_quick" * arguments.quick, rows)


if __name__ == "__main__":
    main()
