"""Kernels and inputs of the gated delta rule's benchmark, and their compilation without a device."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from isoexec_compiler.ops.gated_delta_rule import launchers
from isoexec_compiler.registry import Values
from tests.support.ptx import compiled_launches
from tests.support.rendering import render_kernel

os.environ["TRITON_DISABLE_LINE_INFO"] = "1"  # as in dry launches, so that what they compile is what a launch loads

SCANS = ("warp_specialised", "tiles")
STEPS = ((128, 4), (128, 8))
Job = tuple[str, int, dict[str, int], dict[str, int]]
RECURRENT = ((8, 1), (16, 1), (32, 1), (16, 2), (32, 2), (64, 4))


def attributes(qk_heads: int) -> Values:
    return {"qk_heads": qk_heads, "v_heads": 32, "key_dim": 128, "value_dim": 128, "scale": 128**-0.5}


def rxc(qk_heads: int, scan: str = SCANS[0], step: tuple[int, int] = STEPS[0]) -> ModuleType:
    launch = {"scan_schedule": scan, "step_block_v": step[0], "step_warps": step[1]}
    return render_kernel("gdn_rxc", "sm90", attributes(qk_heads), launch=((None, launch),))


def recurrent(qk_heads: int, step: tuple[int, int]) -> ModuleType:
    launch = dict(zip(("recurrent_block_v", "recurrent_warps"), step, strict=True))
    return render_kernel("gdn_native_step", "sm90", attributes(qk_heads), launch=((None, launch),))


def rows(
    tokens: int, qk_heads: int, device: str = "cuda", correlated: float = 0.0, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Fresh q, k, v, g, beta; `correlated` pulls all keys toward one direction."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, generator=generator)

    q, k = normal(tokens, qk_heads, 128), normal(tokens, qk_heads, 128) * (1 - correlated)
    k = k + correlated * normal(1, qk_heads, 128)
    q, k = ((x / x.norm(dim=-1, keepdim=True)).bfloat16() for x in (q, k))
    g = -torch.rand(tokens, 32, device=device, generator=generator) * (0.005 if correlated else 0.1)
    return {"q": q, "k": k, "v": normal(tokens, 32, 128).bfloat16(), "g": g, "beta": normal(tokens, 32).sigmoid()}


def compile_one(job: tuple[str, int, Any]) -> str | None:
    """Fill Triton's cache from a process without a device; returns why a variant does not compile."""
    kind, qk_heads, launch = job
    try:
        given = rows(64, qk_heads, "cpu")
        cu = torch.tensor([0, 64], dtype=torch.int32)
        lanes = torch.zeros(64, dtype=torch.int32)
        with compiled_launches():
            if kind == "scan":
                module = rxc(qk_heads, scan=launch)
                out = module.gated_delta_rule(**{n: x.requires_grad_() for n, x in given.items()}, cu_seqlens=cu)
                out.backward(out)
                given = {n: x.detach() for n, x in given.items()}
                module.gated_delta_extend(**given, cu_seqlens=cu, state=module.new_caches(2, "cpu"), slots=lanes[:1])
                with suppress(IndexError):
                    caches, one = module.new_caches(2, "cpu"), lanes[:1]
                    module.gated_delta_extend(**given, cu_seqlens=cu, state=caches, slots=one, positions=one)
            else:
                module = rxc(qk_heads, step=launch) if kind == "step" else recurrent(qk_heads, launch)
                module.gated_delta_step(**given, state=module.new_caches(2, "cpu"), slots=lanes, positions=lanes)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def compile_launchers(job: Job) -> str | None:
    """As `compile_one`, for some functions of an implementation, each with a number of rows, at a launch of its own
    (none: the recommended)."""
    name, qk_heads, launch, functions = job
    try:
        sizes = attributes(qk_heads)
        module = render_kernel(name, "sm90", sizes, launch=((None, launch),) if launch else None)
        with compiled_launches():
            for function, count in functions.items():
                launchers(module, sizes, torch.bfloat16, count, "cpu")[function]()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return None


def compile_all(compile_job: Callable[[Any], str | None], jobs: Sequence[Any]) -> None:
    """Every job into Triton's cache, in processes beside one another, before anything is timed; prints what failed."""
    with multiprocessing.get_context("fork").Pool(min(len(jobs), os.cpu_count() or 1)) as pool:
        for job, reason in zip(jobs, pool.map(compile_job, jobs, chunksize=1), strict=True):
            if reason:
                print(f"not compiled: {job}: {reason}", flush=True)


def same(a: torch.Tensor, b: torch.Tensor) -> int:
    kind = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return int((a.contiguous().view(kind) != b.contiguous().view(kind)).sum())
