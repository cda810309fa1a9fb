"""Machine code of compiled kernels, and the mark of a fault that some versions of ptxas have.

A tensor-core product (HGMMA) finds its operands in shared memory by 64-bit descriptors: address, strides and, in the
upper word, a constant. ptxas adds steps to a descriptor word by word, and where the upper word is that constant alone
it must add it to zero. ptxas 12.8, which Triton 3.6 brings, sometimes takes a register that holds something else: the
product then reads shared memory that nobody wrote for it, and its bits may differ from run to run.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator

from isoexec_compiler.toolchain import Variant

UPPER_WORDS = (0x40000040, 0x80000020, 0xC0000010)  # of operands in rows of 128, 64 and 32 bytes
ZERO = ("RZ", "URZ", "SRZ")
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?P<guard>@\S+ )?(?P<name>\S+) ?(?P<operands>[^;]*);")
COPIES = ("MOV", "UMOV", "R2UR", "CS2R")


def disassembled(kernel: Variant) -> str:
    """The kernel's machine code as text, by the nvdisasm that Triton brings."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def lost_descriptors(sass: str) -> Iterator[str]:
    """Additions that make a descriptor's upper word from a register that does not hold zero."""
    zeros: set[str] = set(ZERO)
    for found in INSTRUCTION.finditer(sass):
        name, operands = found["name"], [word.strip().split(".reuse")[0] for word in found["operands"].split(",")]
        if name in ("IADD3.X", "UIADD3.X") and any(_number(word) in UPPER_WORDS for word in operands):
            registers = [word for word in operands[1:] if re.fullmatch(r"U?R(\d+|Z)", word)]
            if not zeros.issuperset(registers):
                yield f"{name} {', '.join(operands)}"
        written = _written(name, operands)
        sources = operands[1:2] if name in COPIES else operands[1:] if name.startswith("IMAD.") else [""]
        if found["guard"] is None and zeros.issuperset(sources):
            zeros |= written
        else:
            zeros -= written


def _written(name: str, operands: list[str]) -> set[str]:
    """Registers that an instruction writes: pairs and quadruples are named by their first."""
    match = re.fullmatch(r"(U?R)(\d+)", operands[0])
    if match is None:
        return set()
    wide = 4 if "128" in name or "M88.4" in name else 2 if re.search(r"64|WIDE|CS2R", name) else 1
    return {f"{match[1]}{int(match[2]) + i}" for i in range(wide)}


def _number(word: str) -> int | None:
    match = re.fullmatch(r"(-?)0x([0-9a-f]+)", word)
    return match and int(match[1] + match[2], 16) % (1 << 32)
