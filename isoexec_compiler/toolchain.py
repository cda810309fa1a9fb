"""What the toolchain makes of a package: the PTX of every kernel, without a GPU, and its lock `ptx.lock`.

Each launcher is called with uninitialised CPU tensors while Triton believes it has a device of the target: it then
compiles what it would launch, and launches nothing. The PTX depends on Triton's version and on nothing of the machine.
`ptx.lock` stands beside `isoexec.lock`, which stays a pure function of the contract and the templates.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from isoexec_compiler.codes import Code
from isoexec_compiler.drift import Drift, show
from isoexec_compiler.identity import Facts, text_digest
from isoexec_compiler.plan import Kernel, Plan
from isoexec_compiler.registry import Value

NAME = "ptx.lock"
CAPABILITY = {"sm90": 90}
MANY_ROWS = 8192

TOOLCHAIN_CHANGED = Code(
    id="L320",
    title="compiled code differs",
    manual="""The PTX that the installed Triton makes of a kernel is not the PTX that `ptx.lock` seals, although the
kernel's text is the same: another Triton, or other compiler options.

Install the Triton that the lock names. To move to another, run `isoexec compile --deep` and prove the laws again.
""",
)
NOT_SEALED = Code(
    id="L321",
    title="compiled code not sealed",
    manual="""`ptx.lock` is missing, or was made from other kernel texts than the package holds now.

Run `isoexec compile --deep` on the contract and commit the result.
""",
)


def version() -> str:
    """The installed Triton's version. Raises ImportError where there is none."""
    import triton

    return str(triton.__version__)


def ptx_facts(plan: Plan, facts: Facts, root: Path) -> dict[str, Value]:
    """The facts of `ptx.lock`: Triton's version, and each compiled variant's digest with the source it came from.

    `root` is the folder that holds the package's folder.
    """
    found: dict[str, Value] = {"contract": plan.contract, "toolchain.triton": version()}
    for kernel in plan.kernels:
        if kernel.target in CAPABILITY:
            source = f"numerical_policy.{kernel.target}.kernels.{kernel.module}.source"
            found[f"{kernel.target}.{kernel.module}.source"] = facts[source]
            for name, variant in compiled(plan.contract, kernel, root).items():
                found[f"{kernel.target}.{kernel.module}.ptx.{name}"] = text_digest(variant.ptx)
    return found


def compiled(contract: str, kernel: Kernel, root: Path) -> dict[str, Variant]:
    """Every variant that a kernel module launches, by `<function>.<bucket>.<kernel>.<number>`."""
    module = _import(f"{contract}.{kernel.target}.kernels.{kernel.module}", root)
    found: dict[str, Variant] = {}
    for bucket, (rows, _) in enumerate(kernel.free_launch):
        for name, launcher in launchers(module, kernel, rows or MANY_ROWS, "cpu").items():
            with dry_launches(CAPABILITY[kernel.target]) as launched:
                launcher()
            for number, variant in enumerate(launched):
                found[f"{name}.{bucket}.{variant.name}.{number}"] = variant
    return found


def launchers(module: ModuleType, kernel: Kernel, rows: int, device: str) -> Mapping[str, Callable[[], object]]:
    """A call of each function of a kernel module on uninitialised arguments of `rows` rows, from its op's file: from
    `launchers` where functions keep state or have gradients to launch, else from the arguments of `example`."""
    import torch

    op = importlib.import_module(f"isoexec_compiler.ops.{kernel.op}")
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[kernel.dtype]
    if hasattr(op, "launchers"):
        calls: Mapping[str, Callable[[], object]] = op.launchers(module, kernel.attributes, dtype, rows, device)
        return calls
    arguments = op.example(kernel.attributes, dtype, rows, device)
    return {name: partial(getattr(module, name), *given) for name, given in arguments.items()}


def drifts(sealed: Facts, facts: Facts, plan: Plan, root: Path) -> Iterator[Drift]:
    """How a `ptx.lock` differs from what this machine's toolchain makes of the package with these facts."""
    for key, value in sealed.items():
        target, _, name = key.partition(".")
        if key.endswith(".source") and facts.get(f"numerical_policy.{target}.kernels.{name}") != value:
            yield Drift(code=NOT_SEALED.id, subject=name.removesuffix(".source"), detail="sealed from another text")
            return
    found = ptx_facts(plan, facts, root)
    for key in sorted(sealed.keys() | found.keys()):
        if sealed.get(key) != found.get(key):
            detail = f"{show(sealed.get(key))} -> {show(found.get(key))}" if "toolchain" in key else "PTX differs"
            yield Drift(code=TOOLCHAIN_CHANGED.id, subject=key, detail=detail, rotates=(NAME,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled form of a kernel: its name, its texts from the source's on, its machine code, and bytes of shared
    memory."""

    name: str
    source: str
    ptx: str
    ttgir: str
    cubin: bytes
    shared: int


@contextmanager
def dry_launches(capability: int) -> Iterator[list[Variant]]:
    """Within, launching a Triton kernel compiles it for `capability`, with the specialisation a launch would have, and
    records the variant instead of running. Arguments may lie on the CPU; outputs stay unwritten.
    """
    os.environ["TRITON_DISABLE_LINE_INFO"] = "1"
    import torch
    from triton.runtime import driver, jit

    launched: list[Variant] = []
    run = jit.JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        texts = {name: kernel.asm[name] for name in ("source", "ptx", "ttgir", "cubin")}
        launched.append(Variant(name=self.__name__, **texts, shared=kernel.metadata.shared))
        return kernel

    before, properties = driver._active, torch.cuda.get_device_properties
    driver.set_active(_Device(capability))
    jit.JITFunction.run = compile_only
    torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=1)
    try:
        yield launched
    finally:
        jit.JITFunction.run, torch.cuda.get_device_properties = run, properties
        driver._active = before


class _Device:
    """As much of a Triton driver as compiling needs."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return -self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def _import(name: str, root: Path) -> Any:
    for loaded in [m for m in sys.modules if m.split(".")[0] == name.split(".")[0]]:
        del sys.modules[loaded]
    sys.path.insert(0, str(root.resolve()))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)
