"""Support modules as a generated package has them, imported from a throw-away package."""

from __future__ import annotations

import atexit
import importlib
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType

from isoexec_compiler.template_files import load


@cache
def support_module(name: str) -> ModuleType:
    """The support module `name`, beside the modules that it imports."""
    folder = Path(tempfile.mkdtemp(prefix="isoexec_support_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    sys.path.insert(0, str(folder))
    package = folder / f"support_of_{name}"
    package.mkdir()
    texts = load().support([f"from .{name} import _"])
    for module, text in {"__init__": "", **texts}.items():
        (package / f"{module}.py").write_text(text, encoding="utf-8", newline="\n")
    importlib.invalidate_caches()
    return importlib.import_module(f"{package.name}.{name}")
