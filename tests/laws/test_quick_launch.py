"""A launcher that remembers launches what Triton would: the same compiled kernel with the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import CompiledKernel
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.runtime import driver

from tests.support.support_modules import support_module
from tests.support.targets import INTERPRETING

pytestmark = pytest.mark.skipif(INTERPRETING, reason="an interpreting process compiles nothing")
quick_launch = support_module("quick_launch")
Launched = list[tuple[Any, ...]]
BASE, WIDE = torch.zeros(64), torch.zeros(64, dtype=torch.float64)


@triton.jit(do_not_specialize=["rows"])
def _kernel(x, out, rows, stride, SCALE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * stride, tl.load(x + at, at < rows) * SCALE, at < rows)


@gluon.jit
def _laid_out_kernel(x, out, LAYOUT: gl.constexpr):
    at = gl.arange(0, 64, LAYOUT)
    gl.store(out + at, gl.load(x + at))


class Device:
    """As much of a driver as launching needs."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """What reaches the driver: the kernel's hash, grid, stream and arguments."""
    found: Launched = []

    def run(kernel: CompiledKernel) -> Callable[..., None]:
        def launch(*arguments: Any) -> None:
            tensors = (
                (a.data_ptr(), a.dtype) if isinstance(a, torch.Tensor) else a for a in arguments[9:]
            )  # after the grid, the stream, the function, its metadata and the hooks
            found.append((kernel.hash, *arguments[:4], *tensors))

        return launch

    monkeypatch.setattr(driver, "_active", Device())
    monkeypatch.setattr(CompiledKernel, "run", property(run))
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda kernel: None)
    return found


def calls() -> None:
    """Every way in which Triton tells two launches apart, and integers that it does not look at."""
    for x in (BASE, BASE[4:], BASE[1:], WIDE):
        for rows in (1, 16, 17, 2**31):
            for stride in (1, 16, 24, 2**33):
                _kernel[(rows % 7 + 1,)](x, x, rows, stride, SCALE=2, BLOCK=16, num_warps=1)
                _kernel[(1, 2)](x, BASE, rows, stride, 3, BLOCK=32, num_warps=2)


def test_the_same_launches(launched: Launched) -> None:
    calls()
    stock = list(launched)
    quick_launch.quicken(SimpleNamespace(_kernel=_kernel))
    try:
        for _ in range(2):  # filling what is remembered, then from there
            launched.clear()
            calls()
            assert launched == stock
        assert len({entry[0] for entry in stock}) > 8
        kept = _kernel.run.found
        rows_of_one_width = {key[3] for key in kept}
        assert rows_of_one_width == {0, 1}, "rows are told apart by their width alone"
    finally:
        del _kernel.run


def test_a_key_that_leaves_something_out_is_seen(launched: Launched, monkeypatch: pytest.MonkeyPatch) -> None:
    calls()
    stock = list(launched)
    mark = quick_launch._mark
    monkeypatch.setattr(
        quick_launch, "_mark", lambda a, loose: a.dtype if isinstance(a, torch.Tensor) else mark(a, loose)
    )
    quick_launch.quicken(SimpleNamespace(_kernel=_kernel))
    try:
        launched.clear()
        calls()
        assert launched != stock
    finally:
        del _kernel.run


def test_bound_once_and_only_kernels(launched: Launched) -> None:
    module = ModuleType("of_kernels")
    module._kernel, module.other = _kernel, calls  # type: ignore[attr-defined]
    quick_launch.quicken(module)
    first = _kernel.run
    try:
        quick_launch.quicken(module)
        assert _kernel.run is first
    finally:
        del _kernel.run


def test_a_watcher_of_launches_still_sees_them(launched: Launched) -> None:
    seen: list[str] = []
    quick_launch.quicken(SimpleNamespace(_kernel=_kernel))
    try:
        calls()
        triton.knobs.runtime.launch_enter_hook.add(watch := lambda metadata: seen.append(metadata.get()["name"]))
        launched.clear()
        calls()
        assert len(launched) == 128  # the hook itself is called by the driver, which is not here
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(watch)
        del _kernel.run


def test_a_watcher_of_compilation_is_spared_what_triton_cannot_tell_it(
    launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", lambda **event: told.append(event["repr"]))
    layout = gl.BlockedLayout([1], [32], [1], [0])
    with pytest.raises(TypeError, match="not JSON serializable"):
        _laid_out_kernel[(1,)](BASE, WIDE, LAYOUT=layout, num_warps=1)
    quick_launch.quicken(SimpleNamespace(_kernel=_kernel, _laid_out_kernel=_laid_out_kernel))
    try:
        launched.clear()
        _laid_out_kernel[(1,)](BASE, BASE, LAYOUT=layout, num_warps=1)
        assert len(launched) == 1
        assert not told
        _kernel[(1,)](BASE, BASE, 5, 5, SCALE=5, BLOCK=64, num_warps=1)
        assert len(told) == 1
    finally:
        del _kernel.run, _laid_out_kernel.run
