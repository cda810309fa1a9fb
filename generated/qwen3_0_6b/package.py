# SPDX-License-Identifier: Apache-2.0
"""This generated package as data: the contract, the lock, and which kernel file runs a region in a case."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent
NAME = __package__ or ROOT.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """`contract` is `contract.json`, `lock` the flat leaves of `isoexec.lock`, both as they lie beside this file."""

    contract: Mapping[str, Any]
    lock: Mapping[str, Any]

    @property
    def model(self) -> Mapping[str, Any]:
        """The figures of the model: `hidden_size`, `heads`, ..."""
        return self.contract["model"]["config"]

    @property
    def dtype(self) -> torch.dtype:
        return {"bf16": torch.bfloat16, "fp32": torch.float32}[self.contract["model"]["dtype"]]

    def cases(self, side: str) -> tuple[str, ...]:
        """The cases that `side` (engine, trainer) runs."""
        return tuple(self.contract["runtimes"][side]["cases"])

    def sizes(self, topology: str) -> tuple[Any, ...]:
        """The sizes claimed for a topology (tp, sp, ep); without a claim only the undivided one."""
        for claim in self.contract["claims"]:
            if claim.get("topology") == topology:
                return tuple(claim["sizes"])
        return ("off",) if topology == "sp" else (1,)

    def multiplicity(self) -> dict[str, int]:
        """How often one forward runs each region: once for every layer that holds it."""
        return {name: max(1, len(region["layers"])) for name, region in self.contract["regions"].items()}

    def kernel(self, target: str, region: str, case: str) -> ModuleType:
        """The module that computes `region` in `case` on `target`. Raises KeyError without one."""
        return importlib.import_module(f"{NAME}.{target}.kernels.{self.contract['kernels'][target][case][region]}")


@cache
def load() -> Package:
    """Read the contract and the lock of this package. Raises OSError or ValueError when one is missing or no JSON."""
    contract, lock = (
        json.loads((ROOT / name).read_text(encoding="utf-8")) for name in ("contract.json", "isoexec.lock")
    )
    return Package(contract=contract, lock=lock)


def target() -> str:
    """The target of this machine: `cpu` without an accelerator, `sm90` on Hopper. Raises ValueError on any other."""
    if not torch.cuda.is_available():
        return "cpu"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) != (9, 0):
        raise ValueError(f"no target of {NAME} runs on a device of compute capability {major}.{minor}")
    return "sm90"
