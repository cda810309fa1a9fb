"""Launches of the dense products to choose from: what `python -m bench.gemm --quick` compares."""

from __future__ import annotations

from collections.abc import Iterator

from bench.gemm import Case

NAMES = ("schedule", "block_m", "block_n", "num_warps", "num_stages", "group", "share", "overlap")
PERSISTENT = [("persistent", 128, n, 4, 8, 8, 1) for n in (128, 256)]


def sequential(n: int, k: int, rows: int, *launches: tuple, block_k: int = 64) -> Case:
    """A case of `matmul_sequential`; a launch lists the values of `NAMES`."""
    named = tuple({"overlap": True, **dict(zip(NAMES, launch, strict=False))} for launch in launches)
    return Case(implementation="matmul_sequential", n=n, k=k, rows=rows, constants={"block_k": block_k}, launches=named)


def tree(n: int, k: int, rows: int, *launches: tuple, block_k: int = 64, leaves: int = 8) -> Case:
    """A case of `matmul_tree`; a launch lists the values of `NAMES`."""
    named = tuple({"overlap": True, **dict(zip(NAMES, launch, strict=False))} for launch in launches)
    constants = {"leaves": leaves, "leaf_dtype": "fp32", "block_k": block_k}
    return Case(implementation="matmul_tree", n=n, k=k, rows=rows, constants=constants, launches=named)


def tiles(m: int, *shapes: tuple[int, int, int], group: int = 1) -> list[tuple]:
    """Launches of `tiles` with m rows: (outputs, warps, stages) each."""
    return [("tiles", m, n, warps, stages, group) for n, warps, stages in shapes]


def shared(m: int, *shapes: tuple[int, int, int, int]) -> list[tuple]:
    """Launches of `tiles` with m rows and leaves shared out: (share, outputs, warps, stages) each."""
    return [("tiles", m, n, warps, stages, 1, share) for share, n, warps, stages in shapes]


def warps(m: int, *shapes: tuple[int, int, int]) -> list[tuple]:
    """Launches of `warps` with m rows: (outputs, warps, stages) each."""
    return [("warps", m, n, count, stages, 1, 1) for n, count, stages in shapes]


def persistent_group() -> Iterator[Case]:
    """Large products, each with a plain tile as the reference for bits."""
    plain, cut = tiles(128, (256, 8, 3), group=8), ("tiles", 128, 128, 8, 3, 8, 1)
    for n, k in ((4096, 4096), (24576, 4096), (4096, 12288)):
        yield sequential(n, k, 8192, *plain, PERSISTENT[1], ("persistent", 128, 256, 4, 8, 16))
    for n, k in ((4096, 4096), (4096, 12288), (2048, 4096)):
        yield tree(n, k, 8192, cut, PERSISTENT[0], ("persistent", 128, 128, 4, 8, 16, 1), leaves=2)
        yield tree(n, k, 8192, cut, PERSISTENT[0], ("persistent", 128, 128, 4, 8, 16, 1))
        yield tree(n, k, 8192, cut, PERSISTENT[0], leaves=4)
    half = ("persistent", 128, 64, 4, 8, 8, 1)
    for rows in (128, 256, 512, 1024, 2048):
        low = [*PERSISTENT, half, *streamed((64, 13), (32, 16), (64, 8))]
        yield sequential(6144, 4096, rows, *plain, *low)
        yield sequential(24576, 4096, rows, *plain, *low)
        for k in (4096, 12288):
            yield tree(4096, k, rows, *shared(64, (2, 64, 4, 5)), *low[:1], *low[2:])


def streamed(*shapes: tuple[int, int]) -> list[tuple]:
    """Launches of `persistent` with 64 rows: (outputs, stages) each."""
    return [("persistent", 64, n, 4, stages, 1, 1) for n, stages in shapes]


def alone(launches: list[tuple]) -> list[tuple]:
    """The same launches without overlap."""
    return [(*launch, *(1,) * (7 - len(launch)), False) for launch in launches]


def streamed_group() -> Iterator[Case]:
    """Few rows through the warp-specialised kernel."""
    for n, k, rows in ((6144, 4096, 1), (6144, 4096, 16), (24576, 4096, 16), (151936, 4096, 16), (6144, 4096, 32)):
        plain = tiles(16, (32, 2, 8), (64, 4, 4), (32, 2, 6))
        yield sequential(n, k, rows, *plain, *streamed((32, 8), (32, 16), (64, 8), (64, 13), (16, 12)))
    for n, rows in ((24576, 64), (151936, 64), (6144, 128), (24576, 128)):
        yield sequential(n, 4096, rows, *tiles(64, (64, 4, 4), (128, 8, 3)), ("columns", 64, 64, 4, 8, 8))
    for n, k, rows in ((4096, 4096, 16), (4096, 12288, 16), (2048, 4096, 16), (4096, 4096, 32), (4096, 12288, 32)):
        plain = warps(16, (16, 8, 4), (32, 8, 4), (32, 4, 4), (16, 4, 4))
        plain += [("beside", 16, width, 8, stages, 1, 8) for width, stages in ((16, 4), (32, 3), (32, 4))]
        yield tree(n, k, rows, *plain, *streamed((16, 12), (16, 16), (32, 8), (32, 16), (64, 10)))
    for n, k in ((4096, 4096), (4096, 12288), (2048, 4096)):
        yield tree(n, k, 64, ("tiles", 64, 64, 4, 4, 1, 1), *streamed((32, 12), (32, 14), (32, 16), (16, 16)))
        for rows, width in ((16, 32), (64, 32), (128, 64), (256, 64), (256, 128), (512, 128)):
            yield tree(n, k, rows, *PERSISTENT[:1], ("halves", 64, width, 4, 9, 8, 8))


GROUPS = {"persistent": persistent_group, "streamed": streamed_group}
