"""One kernel rendered as the compiler renders it, imported from a throw-away package."""

from __future__ import annotations

import atexit
import hashlib
import importlib
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from isoexec_compiler.plan import Kernel, Launch
from isoexec_compiler.registry import Values, implementations
from isoexec_compiler.render import environment, kernel_texts
from isoexec_compiler.template_files import load


@cache
def _root() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="isoexec_laws_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, str(folder))
    return folder


def render_kernel(
    implementation: str,
    target: str,
    attributes: Values,
    constants: Values | None = None,
    launch: Launch | None = None,
    *,
    dtype: str = "bf16",
    tp_sizes: tuple[int, ...] = (1, 2, 4, 8),
) -> ModuleType:
    """The kernel module of `implementation` on `target` ("sm90", "cpu"), rendered with these values and imported.

    Constants and launch that are not given are the implementation's recommendation for these attributes. Equal
    arguments and templates give the same module.
    """
    known = implementations()[implementation]
    settings = known.recommend(attributes)
    kernel = Kernel(
        target=target,
        module="region",
        region="region",
        cases=known.cases,
        op=known.op,
        attributes=attributes,
        implementation=implementation,
        version=known.version,
        constants=settings.constants if constants is None else constants,
        bit_launch={},
        free_launch=settings.launch.get(target, ((None, {}),)) if launch is None else launch,
        dtype=dtype,
        tp_sizes=tp_sizes,
        rounding=known.rounding,
        tree=None,
    )
    templates = load()
    texts = kernel_texts("laws", kernel, templates, environment(templates))
    texts |= {f"{name}.py": text for name, text in templates.support(texts.values()).items()}
    texts |= {f"{part}/__init__.py": "" for part in (".", target, f"{target}/kernels")}
    package = "law_" + hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]
    for path, text in texts.items():
        file = _root() / package / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    importlib.invalidate_caches()
    return importlib.import_module(f"{package}.{target}.kernels.region")
