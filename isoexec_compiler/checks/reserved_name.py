"""A contract name that cannot name a Python package or a folder everywhere."""

import keyword
from collections.abc import Iterator

from isoexec_compiler.codes import Code
from isoexec_compiler.contract import Contract
from isoexec_compiler.diagnostics import Diagnostic

RESERVED_NAME = Code(
    id="K230",
    title="reserved name",
    manual="""
The contract's name becomes a folder and a Python package. Python's keywords cannot be imported, and Windows keeps some
names for devices.

    contract: import

Take another name.
""",
)

DEVICES = frozenset({"con", "prn", "aux", "nul"} | {f"{port}{i}" for port in ("com", "lpt") for i in range(10)})
PACKAGES = frozenset({"torch", "triton", "vllm", "megatron", "isoexec_compiler"})


def check(contract: Contract) -> Iterator[Diagnostic]:
    """The contract's name is free."""
    name = contract.name
    if keyword.iskeyword(name) or name in DEVICES or name in PACKAGES:
        yield RESERVED_NAME.at(contract.at("contract"), f"`{name}` is reserved and cannot name a package")
