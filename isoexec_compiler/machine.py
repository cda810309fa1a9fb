"""The machine and the toolchain that evidence comes from, found without importing torch or Triton."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import subprocess
from pathlib import Path

ARCHITECTURE = {"sm90": "sm_90"}


def architecture(target: str) -> str:
    """The architecture whose evidence counts for a target; for `cpu` that of this machine."""
    return ARCHITECTURE.get(target) or f"cpu {platform.machine()}"


def present(target: str) -> str:
    """The architecture this process would run a target on. Raises RuntimeError where there is no such device."""
    if target not in ARCHITECTURE:
        return architecture(target)
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(f"no CUDA device: {target} kernels cannot run here")
    major, minor = torch.cuda.get_device_capability()
    if f"sm_{major}{minor}" != ARCHITECTURE[target]:
        raise RuntimeError(f"this device is sm_{major}{minor}: {target} kernels need {ARCHITECTURE[target]}")
    return ARCHITECTURE[target]


def device(target: str) -> str:
    """The device's own name."""
    if target not in ARCHITECTURE:
        return platform.processor() or platform.machine()
    import torch

    return str(torch.cuda.get_device_name())


def toolchain(target: str) -> dict[str, str]:
    """Versions of what is installed here and can move a bit of a target; what is not installed is left out."""
    names = ("torch",) if target not in ARCHITECTURE else ("torch", "triton")
    found = {name: _version(name) for name in names}
    if target in ARCHITECTURE:
        found |= {"ptxas": _ptxas(), "driver": _driver()}
    return {name: version for name, version in found.items() if version}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def _ptxas() -> str:
    """The version of the assembler that Triton brings along."""
    spec = importlib.util.find_spec("triton")
    program = Path(spec.origin).parent / "backends/nvidia/bin/ptxas" if spec and spec.origin else Path()
    if not program.is_file():
        return ""
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"\bV([\d.]+)", answer)
    return match[1] if match else ""


def _driver() -> str:
    try:
        match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        return ""
    return match[1] if match else ""
