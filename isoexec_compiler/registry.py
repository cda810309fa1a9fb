"""What ops, implementations, model families and runtimes declare about themselves: the vocabulary of a contract.

One file per thing under `ops/`, `implementations/`, `models/` and `runtimes/`; each defines one constant (`OP`,
`IMPLEMENTATION`, `FAMILY`, `RUNTIME`) and is found by being there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from isoexec_compiler.reduction import ReductionTree

Value = int | float | bool | str
Values = Mapping[str, Value]

CASES = ("engine_prefill", "engine_decode", "trainer_fwd", "trainer_score")
TARGETS = ("sm90", "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One typed setting: an attribute of an op, a constant or launch parameter of an implementation, a model figure.

    `free` is for launch parameters only: a law measured that its choices move no bit, so that it belongs to the
    deployment identity and not to the numerical policy.
    """

    type: Literal["int", "float", "bool", "enum"]
    doc: str
    choices: tuple[Value, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What is computed, without an order: attributes, and a float64 reference in the module's `reference` function.

    `states` names what the op carries from call to call, such as a key-value cache.
    """

    name: str
    doc: str
    attributes: Mapping[str, Field]
    states: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `isoexec init` writes for a selection: every constant, and every launch parameter of every target.

    `launch[target]` is a tuple of buckets `(max_rows, parameters)`; the last bucket has `max_rows` None.
    """

    constants: Values = field(default_factory=dict)
    launch: Mapping[str, tuple[tuple[int | None, Values], ...]] = field(default_factory=dict)


def _nothing(attributes: Values, constants: Values) -> Iterator[str]:
    return iter(())


def _any_launch(attributes: Values, constants: Values, launch: Values, ranks: int) -> Iterator[str]:
    return iter(())


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """How an op is computed: the order, the rounding points, the constants that pin both, and the launch.

    name           also the folder of its templates under `templates/kernels/`
    version        raised when the arithmetic changes; a tripwire, the kernel text is the identity
    rounding       every rounding point in order, one sentence each
    constants      arithmetic, shared by the targets, all mandatory in a contract
    launch         per target; parameters with `free=True` move no bit
    dtypes         model dtypes each target supports; a target absent here cannot run this implementation
    tree           the reduction over the axis that tensor parallelism splits, or None if that axis is never summed
    problems       sentences saying why these constants do not fit these attributes
    launch_problems  sentences saying why a rank of so many cannot run these attributes and constants with these launch
                   parameters
    recommend      what `isoexec init` writes
    emulated       functions of a kernel module whose cpu kernel has the bits of the GPU kernel, which a law shows
    exact_with     other implementations of the same op that a law shows bit-equal when their constants agree
    """

    name: str
    op: str
    version: int
    doc: str
    rounding: tuple[str, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    recommend: Callable[[Values], Settings]
    constants: Mapping[str, Field] = field(default_factory=dict)
    launch: Mapping[str, Mapping[str, Field]] = field(default_factory=dict)
    tree: Callable[[Values, Values], ReductionTree] | None = None
    problems: Callable[[Values, Values], Iterator[str]] = _nothing
    launch_problems: Callable[[Values, Values, Values, int], Iterator[str]] = _any_launch
    emulated: tuple[str, ...] = ()
    exact_with: tuple[str, ...] = ()
    cases: tuple[str, ...] = CASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One place of the model graph that a region must cover.

    split   how tensor parallelism cuts it: `none` (replicated), `columns` (outputs cut, sums whole), `rows` (the summed
            axis is cut), `heads` (independent heads), `vocab` (the vocabulary is cut and summed), `experts`
    extent  the length of the axis that is cut (heads: the number of query heads); 0 where nothing is cut
    layers  indices of the layers that hold it; empty for sites outside the stack
    """

    name: str
    op: str
    attributes: Values
    split: Literal["none", "columns", "rows", "heads", "vocab", "experts"] = "none"
    extent: int = 0
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model family: its figures, the sites of its forward pass in order, and how to read a Hugging Face config.

    `from_hf` takes the parsed config (text part) and returns the figures, or raises `Unsupported`.
    """

    name: str
    doc: str
    config: Mapping[str, Field]
    layer_kinds: tuple[str, ...]
    sites: Callable[[Values, tuple[str, ...]], tuple[Site, ...]]
    model_types: tuple[str, ...]
    from_hf: Callable[[Mapping[str, Any]], tuple[Values, tuple[str, ...]]]


class Unsupported(ValueError):
    """A model config asks for something no region of ours computes; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A framework a contract can bind: its version window, adapter templates, cases, and the claims it can observe.

    `adapters` are written for every contract, those of `adapters_by_op` for contracts with a region of that op.
    """

    name: str
    side: Literal["engine", "trainer"]
    doc: str
    package: str
    versions: tuple[str, ...]
    adapters: tuple[str, ...]
    cases: tuple[str, ...]
    topologies: tuple[str, ...]
    adapters_by_op: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _discover(package: str, attribute: str) -> dict[str, Any]:
    module = importlib.import_module(f"isoexec_compiler.{package}")
    found = {}
    for info in pkgutil.iter_modules(module.__path__):
        entry = getattr(importlib.import_module(f"{module.__name__}.{info.name}"), attribute, None)
        if entry is not None:
            found[entry.name] = entry
    return dict(sorted(found.items()))


@cache
def ops() -> Mapping[str, Op]:
    """Every op by name, from `isoexec_compiler/ops/`."""
    return _discover("ops", "OP")


@cache
def implementations() -> Mapping[str, Implementation]:
    """Every implementation by name, from `isoexec_compiler/implementations/`."""
    return _discover("implementations", "IMPLEMENTATION")


@cache
def families() -> Mapping[str, Family]:
    """Every model family by name, from `isoexec_compiler/models/`."""
    return _discover("models", "FAMILY")


@cache
def runtimes() -> Mapping[str, Runtime]:
    """Every runtime by name, from `isoexec_compiler/runtimes/`."""
    return _discover("runtimes", "RUNTIME")
