"""What a law examines: one kernel module of a package, imported, on its device, with arguments drawn to its size."""

from __future__ import annotations

import importlib
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from isoexec_compiler import bits
from isoexec_compiler.draw import KINDS, Draw
from isoexec_compiler.plan import Kernel, Launch
from isoexec_compiler.render import environment, kernel_texts
from isoexec_compiler.template_files import load
from isoexec_compiler.trial import Arguments, Call

if TYPE_CHECKING:
    import torch

ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 257, 1024, 8192)
FEWEST = 17
DEVICE = {"sm90": "cuda", "cpu": "cpu"}
SCALARS = {"sm90": 1 << 40, "cpu": 1 << 26}
QUICK = {"sm90": 257, "cpu": 33}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A kernel of a package.

    contract   the package's name, below `root`
    modules    the imported module of this region and case on each target of the package
    deadline   when a law stops adding to its domain, as `time.monotonic` counts
    quick      look at fewer rows
    """

    contract: str
    kernel: Kernel
    root: Path
    modules: Mapping[str, ModuleType]
    seed: int
    deadline: float
    quick: bool = False

    @property
    def module(self) -> ModuleType:
        return self.modules[self.kernel.target]

    @property
    def device(self) -> str:
        return DEVICE[self.kernel.target]

    def dtype(self) -> torch.dtype:
        """The model dtype."""
        import torch

        return {"bf16": torch.bfloat16, "fp32": torch.float32}[self.kernel.dtype]

    def late(self) -> bool:
        """Whether the time for this law is used up."""
        return time.monotonic() > self.deadline

    def draw(self, seed: int = 0, kinds: tuple[str, ...] = KINDS, device: str = "") -> Draw:
        """A fresh source of values; another `seed` is another source."""
        return Draw(device or self.device, self.seed + seed, self.dtype(), kinds)

    def calls(self, rows: int, draw: Draw) -> dict[str, Call]:
        """The calls of `rows` rows that this module has a function for."""
        trial = trial_of(self.kernel)
        found: dict[str, Call] = trial.calls(self.kernel.attributes, rows, draw)
        return {name: call for name, call in found.items() if hasattr(self.module, name)}

    def rows(self) -> tuple[int, ...]:
        """The batch sizes to look at: all of ROWS, or as many as the target can compute in reasonable time."""
        one = self.calls(1, self.draw())
        volume = max(sum(a.numel() for a in call.arguments if hasattr(a, "numel")) for call in one.values())
        most = max(FEWEST, SCALARS[self.kernel.target] // volume)
        quick = QUICK[self.kernel.target] if self.quick else most
        limit = min(most, quick, getattr(trial_of(self.kernel), "MOST_ROWS", {}).get(self.kernel.target, most))
        return tuple(rows for rows in ROWS if rows <= limit)

    def run(
        self, name: str, call: Call, arguments: Arguments | None = None, module: ModuleType | None = None
    ) -> tuple[torch.Tensor, ...]:
        """The results of one call, its outputs poisoned beforehand."""
        module, arguments = module or self.module, call.arguments if arguments is None else arguments
        with bits.poisoned():
            result = call.run(module, *arguments) if call.run else getattr(module, name)(*arguments)
        return result if isinstance(result, tuple) else (result,)

    def relaunched(self, table: Launch) -> ModuleType:
        """This kernel with another table of free launch parameters, as a module of a package of its own."""
        templates = load()
        kernel = replace(self.kernel, free_launch=table)
        texts = kernel_texts(self.contract, kernel, templates, environment(templates))
        texts |= {f"{name}.py": text for name, text in templates.support(texts.values()).items()}
        texts |= {f"{part}/__init__.py": "" for part in (".", self.kernel.target, f"{self.kernel.target}/kernels")}
        with tempfile.TemporaryDirectory() as folder:
            for path, text in texts.items():
                file = Path(folder, "relaunched", path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8", newline="\n")
            return imported((self.kernel.dotted("relaunched"),), Path(folder))[0]


def trial_of(kernel: Kernel) -> ModuleType:
    """The file of `isoexec_compiler/trials/` that says how the kernel's op is tried. Raises ImportError without one."""
    return importlib.import_module(f"isoexec_compiler.trials.{kernel.op}")


def tried_by(kernel: Kernel, function: str) -> bool:
    """Whether the trial of the kernel's op has this function; an op without a trial has none."""
    try:
        return hasattr(trial_of(kernel), function)
    except ImportError:
        return False


def imported(names: tuple[str, ...], root: Path) -> list[ModuleType]:
    """Modules of one package that lies in `root`, imported anew whatever was loaded under its name before."""
    package = names[0].split(".")[0]
    for loaded in [module for module in sys.modules if module.split(".")[0] == package]:
        del sys.modules[loaded]
    importlib.invalidate_caches()
    sys.path.insert(0, str(root.resolve()))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.pop(0)


def outputs_differing(found: tuple[Any, ...], expected: tuple[Any, ...]) -> int:
    """How many elements of two results differ in any bit."""
    return sum(bits.differing(a, b) for a, b in zip(found, expected, strict=True))
