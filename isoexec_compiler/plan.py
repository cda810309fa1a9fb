"""The plan: what will be written, decided. It holds no position in a source file and no undecided choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isoexec_compiler.registry import Value, Values

Launch = tuple[tuple[int | None, Values], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel module of one target: a region in the cases that agree on it, with every constant pinned.

    `bit_launch` holds the launch parameters that move bits, `free_launch` those that do not, bucket by bucket.
    """

    target: str
    module: str
    region: str
    cases: tuple[str, ...]
    op: str
    attributes: Values
    implementation: str
    version: int
    constants: Values
    bit_launch: Values
    free_launch: Launch
    dtype: str
    tp_sizes: tuple[int, ...]
    rounding: tuple[str, ...]
    tree: str | None

    @property
    def path(self) -> str:
        return f"{self.target}/kernels/{self.module}.py"

    def dotted(self, package: str) -> str:
        """The module's name for Python, in a package of this name."""
        return f"{package}.{self.target}.kernels.{self.module}"

    @property
    def launch(self) -> Launch:
        """The launch table as kernels read it: bit-moving and free parameters together."""
        return tuple((rows, {**self.bit_launch, **free}) for rows, free in self.free_launch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One framework: which release the package is bound to, by which adapter modules, in which cases."""

    side: str
    runtime: str
    version: str
    cases: tuple[str, ...]
    adapters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything `render` and `identity` need.

    `facts` are the contract's statements in canonical flat form, without kernels: the model, the regions, the claims.
    """

    contract: str
    targets: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    bindings: tuple[Binding, ...]
    semantic: Mapping[str, Value]
    claims: Mapping[str, Value]
    document: Mapping[str, object]

    def modules(self, target: str) -> dict[str, dict[str, str]]:
        """Which kernel module runs each region in each case: {case: {region: module}}."""
        table: dict[str, dict[str, str]] = {}
        for kernel in self.kernels:
            if kernel.target == target:
                for case in kernel.cases:
                    table.setdefault(case, {})[kernel.region] = kernel.module
        return table
