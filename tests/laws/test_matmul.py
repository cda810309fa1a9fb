"""Matrix products, sequential and tree: a row has its bits in any batch, under any free launch, in any shard of N."""

from __future__ import annotations

import pytest
import torch

from isoexec_compiler.ops import matmul as op
from isoexec_compiler.registry import implementations
from tests.support.bits import assert_same_bits, differing, poisoned_outputs
from tests.support.inputs import hazard_counts, hazards, normal, wide
from tests.support.products import CONSTANTS, IMPLEMENTATIONS, ROWS, SIZES, launches, module
from tests.support.ptx import compiled_launches, offences
from tests.support.targets import DEVICE, HOPPER, INTERPRETING

hopper = pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def operands(place: str, rows: int, n: int, k: int, seed: int = 0, dtype: str = "bf16", draw=wide):
    """x [rows, k] and weight [n, k] on the device of `place`."""
    device = DEVICE[place]
    return draw(rows, k, seed=seed, dtype=dtype, device=device), draw(n, k, seed=seed + 9, dtype=dtype, device=device)


@pytest.mark.parametrize("out", ["model", "fp32"])
def test_a_row_alone_has_the_bits_it_has_in_any_batch(place: str, implementation: str, out: str) -> None:
    n, k = SIZES[place]
    matmul = module(place, implementation, n, k, out=out).matmul
    x, weight = operands(place, max(ROWS[place]), n, k)
    with poisoned_outputs():
        whole = matmul(x, weight)
        for rows in ROWS[place]:
            assert_same_bits(matmul(x[:rows], weight), whole[:rows], f"first {rows} rows")
            assert_same_bits(matmul(x[-rows:], weight), whole[-rows:], f"last {rows} rows")
        for row in {0, x.shape[0] // 2, x.shape[0] - 1}:
            assert_same_bits(matmul(x[row : row + 1], weight), whole[row : row + 1], f"row {row} alone")


@pytest.mark.parametrize("rows", [1, 70])
def test_every_free_launch_gives_the_same_bits(place: str, implementation: str, rows: int) -> None:
    n, k = SIZES[place]
    tables = launches(implementation, place)
    for draw, out in ((wide, "fp32"), (wide, "model"), (hazards, "fp32")):
        x, weight = operands(place, rows, n, k, draw=draw)
        if draw is hazards:
            assert min(hazard_counts(x).values()) > 0
        expected = module(place, implementation, n, k, tables[0], out=out).matmul(x, weight)
        for table in tables[1:]:
            with poisoned_outputs():
                found = module(place, implementation, n, k, table, out=out).matmul(x, weight)
            assert_same_bits(found, expected, str(table))


def test_shards_of_the_outputs_are_slices_of_the_whole(place: str) -> None:
    n, k = SIZES[place]
    matmul = module(place, "matmul_sequential", n, k).matmul
    x, weight = operands(place, 33, n, k)
    whole = matmul(x, weight)
    for size in (2, 4, 8):
        parts = [matmul(x, shard.contiguous()) for shard in weight.chunk(size)]
        assert_same_bits(torch.cat(parts, 1), whole, f"{size} shards")


@pytest.mark.parametrize("blocks", [8, 24])
def test_lengths_that_are_no_power_of_two(place: str, implementation: str, blocks: int) -> None:
    n, k = 48, blocks * 64
    matmul = module(place, implementation, n, k, out="fp32").matmul
    x, weight = operands(place, 18, n, k, draw=normal)
    whole = matmul(x, weight)
    assert_same_bits(matmul(x[5:6], weight), whole[5:6])
    truth = op.reference(x, weight)
    assert float((whole.double() - truth).norm() / truth.norm()) < 1e-5


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_accuracy_and_gradients_against_float64(place: str, implementation: str, dtype: str) -> None:
    if dtype not in implementations()[implementation].dtypes["cpu" if place == "cpu" else "sm90"]:
        return
    n, k = SIZES[place]
    bound = {"bf16": 2**-8, "fp32": 1e-6}[dtype]  # half a unit in the last place of bf16; rounding noise of fp32 sums
    x, weight = (t.requires_grad_() for t in operands(place, 20, n, k, dtype=dtype, draw=normal))
    found = module(place, implementation, n, k, dtype=dtype).matmul(x, weight)
    grad = normal(20, n, seed=3, dtype=dtype, device=DEVICE[place])
    found.backward(grad)
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    truth = op.reference(*exact)
    truth.backward(grad.double())
    for ours, other in ((found, truth), (x.grad, exact[0].grad), (weight.grad, exact[1].grad)):
        assert float((ours.double() - other).norm() / other.norm()) < bound


def test_integers_beyond_tf32_and_bfloat16_are_exact(place: str, implementation: str) -> None:
    """x [1, 1, 0, ...] against rows [256 a, b, 0, ...]: every integer below 65536, in fp32."""
    values = torch.arange(65536 if place != "interpreter" else 4096)
    weight = torch.zeros(len(values), 512)
    weight[:, 0], weight[:, 1] = values // 256 * 256, values % 256
    x = torch.zeros(1, 512)
    x[0, :2] = 1
    x, weight = (t.to(DEVICE[place], torch.bfloat16) for t in (x, weight))
    found = module(place, implementation, len(values), 512, out="fp32").matmul(x, weight)
    assert_same_bits(found.cpu(), values.float()[None])
    if place == "cpu":
        tf32_leak = torch.arange(8192.0)
        weight = torch.zeros(8192, 512)
        weight[:, 0] = tf32_leak
        found = module(place, implementation, 8192, 512, dtype="fp32").matmul(torch.eye(1, 512), weight)
        assert_same_bits(found, tf32_leak[None])


def test_no_rows_strides_and_neighbours(place: str, implementation: str) -> None:
    n, k = SIZES[place]
    matmul = module(place, implementation, n, k).matmul
    x, weight = operands(place, 19, n, k)
    expected = matmul(x, weight)
    assert matmul(x[:0], weight).shape == (0, n)
    assert_same_bits(matmul(x.T.contiguous().T, weight), expected, "columns first")
    fenced = torch.full((25, k + 3), float("nan"), dtype=x.dtype, device=x.device)
    for left, top in ((0, 0), (3, 5), (1, 2)):
        view = fenced[top : top + 19, left : left + k]
        view.copy_(x)
        assert_same_bits(matmul(view, weight), expected, "inside NaN")
        view.fill_(float("nan"))


def test_refusals(place: str, implementation: str) -> None:
    n, k = SIZES[place]
    matmul = module(place, implementation, n, k).matmul
    x, weight = operands(place, 3, n, k)
    for bad in ((x[:, : k - 1], weight), (x, weight[: n - 1]), (x.float(), weight), (x[0], weight)):
        with pytest.raises(ValueError, match="matmul"):
            matmul(*bad)
    with pytest.raises(ValueError, match="contiguous"):
        matmul(x, weight.T.contiguous().T)


@pytest.mark.parametrize("k", [96, 2048 + 16, 4097])
def test_tails_are_refused_by_the_compiler(implementation: str, k: int) -> None:
    known = implementations()[implementation]
    sentences = list(known.problems({"n": 64, "k": k, "split": "none", "out": "model"}, CONSTANTS[implementation]))
    assert sentences
    assert str(k) in sentences[0]


@pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
def test_texts_for_hopper_hold_no_banned_instruction(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        multi_processor_count = 132

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Device)
    x, weight = (torch.empty(rows, 4096, dtype=torch.bfloat16) for rows in (8192, 4096))
    with compiled_launches() as compiled:
        for rows in (16, 64, 256, 8192):
            module("sm90", implementation, 4096, 4096).matmul(x[:rows], weight)
    assert len(compiled) >= 4
    for kernel in compiled:
        assert offences(kernel.ptx) == (), kernel.name
        assert "mma" in kernel.ptx or kernel.name == "_combine_kernel"


@hopper
def test_stock_cublas_differs_by_batch() -> None:
    """The negative control: split-K at few rows has other bits, and the comparison sees them."""
    x, weight = operands("sm90", 1024, 2048, 4096, draw=normal)
    ours = module("sm90", "matmul_sequential", 2048, 4096).matmul
    assert sum(differing(torch.mm(x[:rows], weight.T), torch.mm(x, weight.T)[:rows]) for rows in (1, 8, 16, 64)) > 0
    assert sum(differing(ours(x[:rows], weight), ours(x, weight)[:rows]) for rows in (1, 8, 16, 64)) == 0


@hopper
def test_offsets_beyond_int32(implementation: str) -> None:
    k, n = 4096, 4096
    rows = (1 << 31) // k + 129
    x = torch.empty(rows, k, dtype=torch.bfloat16, device="cuda").normal_()
    weight = normal(n, k, seed=1, dtype="bf16", device="cuda")
    for table in (None, *launches(implementation, "sm90")[::9]):
        matmul = module("sm90", implementation, n, k, table).matmul
        assert_same_bits(matmul(x, weight)[-3:], matmul(x[-3:].clone(), weight), f"rows of x, {table}")
    wide_module = module(
        "sm90", implementation, rows - 1, k
    ).matmul  # the rows of x as a weight of more than 2^31 values
    outputs = wide_module(weight[:3], x[1:])
    assert_same_bits(
        outputs[:, -64:], module("sm90", implementation, 64, k).matmul(weight[:3], x[-64:]), "of the weight"
    )


@hopper
def test_captured_graphs_and_repeats(implementation: str) -> None:
    x, weight = operands("sm90", 8192, 512, 4096)
    matmul = module("sm90", implementation, 512, 4096).matmul
    for rows in (1, 16, 64, 256, 8192):
        expected = matmul(x[:rows], weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = matmul(x[:rows], weight)
        for _ in range(100):
            found.fill_(float("nan"))
            graph.replay()
            assert differing(found, expected) == 0


def test_another_dtype_inside_is_seen() -> None:
    """The negative control of accuracy: sums kept in bf16 fail the bound that ours pass."""
    x, weight = (normal(20, 512, seed=seed, dtype="bf16") for seed in (0, 1))
    truth = op.reference(x, weight)
    kept = torch.zeros(20, 20, dtype=torch.bfloat16)
    for k in range(0, 512, 64):
        kept += x[:, k : k + 64] @ weight[:, k : k + 64].T
    assert float((kept.double() - truth).norm() / truth.norm()) > 2**-8
