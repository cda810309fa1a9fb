"""Row-wise kernels against torch: `python -m bench.rowwise [--quick]`. Inputs rotate, so that L2 is cold.

All of these move bytes: the goal is 85 % of the copy bandwidth that this run measures, wherever a call is long enough.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from bench import harness
from isoexec_compiler.registry import Value, Values
from tests.support.rendering import render_kernel

L2_BYTES = 60 << 20
Call = Callable[[int], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: ours and torch's on input set i of `copies`, and the bytes that no version can avoid moving."""

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
    x, r = ([draw(rows, width) for _ in range(sets(2 * one))] for _ in range(2))
    yield Case(
        name=f"rms_norm {rows}x{width}{label}",
        ours=lambda i: kernel.rms_norm(x[i], weight),
        peer=lambda i: F.rms_norm(x[i], (width,), weight, 1e-6),
        what="torch rms_norm",
        moved=2 * one,
        copies=len(x),
    )
    yield Case(
        name=f"add_rms_norm {rows}x{width}{label}",
        ours=lambda i: kernel.add_rms_norm(x[i], r[i], weight),
        peer=lambda i: F.rms_norm(x[i] + r[i], (width,), weight, 1e-6),
        what="torch add, rms_norm",
        moved=4 * one,
        copies=len(x),
    )


def silu(rows: int, width: int) -> Case:
    kernel = render_kernel("silu_gate_rows", "sm90", {"width": width})
    moved = 3 * rows * width * 2
    x = [draw(rows, 2 * width) for _ in range(sets(moved))]
    return Case(
        name=f"silu_gate {rows}x{width}",
        ours=lambda i: kernel.silu_gate(x[i]),
        peer=lambda i: F.silu(x[i][:, :width]) * x[i][:, width:],
        what="torch silu, mul",
        moved=moved,
        copies=len(x),
    )


def rotary(rows: int, heads: int) -> Case:
    attributes: dict[str, Value] = {"head_dim": 128, "rotary_dim": 128, "theta": 1e6, "max_positions": 40960}
    kernel = render_kernel("rotary_table", "sm90", attributes)
    moved = 2 * rows * heads * 128 * 2
    x = [draw(rows, heads, 128) for _ in range(sets(moved))]
    positions = torch.randint(0, 40960, (rows,), device="cuda")
    table = kernel.table(40960, "cuda")

    def peer(i: int) -> torch.Tensor:
        pair = table[positions]
        cos, sin = pair[..., 0][:, None].bfloat16(), pair[..., 1][:, None].bfloat16()
        a, b = x[i].chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return Case(
        name=f"rotary {rows}x{heads}x128",
        ours=lambda i: kernel.rotary(x[i], positions),
        peer=peer,
        what="torch, unfused",
        moved=moved,
        copies=len(x),
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
        for schedule, warps in (("leaves", 4), ("leaves", 8), ("cluster", 4), ("cluster", 8)):
            launch: Values = {"schedule": schedule, "num_warps": warps, "finish_block": 1024}
            yield from log_softmax(1024, 151936, launch)
    for rows in (16, 8192):
        yield silu(rows, 12288)
        yield rotary(rows, 32)
    for rows in (1, 16, 128, 2048):
        for vocab in (151936, 248320):
            yield from log_softmax(rows, vocab)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="with other launches beside the recommended ones")
    arguments = parser.parse_args()
    bandwidth = copy_bandwidth()
    print(f"copy bandwidth {bandwidth / 1e9:.2f} TB/s")
    rows = []
    with torch.no_grad():
        for case in cases(arguments.quick):

            def every(call: Call, copies: int = case.copies) -> None:
                for i in range(copies):
                    call(i)

            ours = harness.graph(lambda case=case: every(case.ours))
            peer = harness.graph(lambda case=case: every(case.peer))
            mine, theirs = harness.paired(ours, peer, rounds=15)
            floor = case.moved / bandwidth
            found = harness.row(
                case.name, mine / case.copies, case.what, theirs / case.copies, floor, "floor/ours >= 0.85"
            )
            print(f"{floor * case.copies / mine:5.2f} of the floor's rate ", *found.values(), flush=True)
            rows.append(found)
            torch.cuda.empty_cache()
    harness.save("dense_rowwise" + "_quick" * arguments.quick, rows)


if __name__ == "__main__":
    main()
