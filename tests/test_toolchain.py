"""Compiled code sealed beside the lock: every sm90 kernel becomes PTX without a GPU, the same wherever it is made."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from isoexec_compiler import lock, pipeline, toolchain
from tests.support.ptx import offences

CONTRACT = Path(__file__).parent.parent / "contracts/tiny_dense.yaml"
NEVER = ("atomics", "approximate division", "approximate square root", "approximate reciprocal square root")


@pytest.fixture(scope="module")
def package() -> pipeline.Package:
    contract, problems = pipeline.load(CONTRACT.read_bytes(), CONTRACT.name)
    assert contract is not None, problems
    return pipeline.build(contract)


@pytest.fixture(scope="module")
def sealed(package: pipeline.Package, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated") / package.plan.contract
    pipeline.save(package, folder)
    assert pipeline.seal(package, folder) is True
    return folder


def codes(package: pipeline.Package, folder: Path) -> set[str]:
    problems, drifts = pipeline.verify_deep(package, folder)
    return {problem.code for problem in problems} | {drift.code for drift in drifts}


def test_sealing_again_in_another_folder_changes_no_byte(
    package: pipeline.Package, sealed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    elsewhere = tmp_path / "elsewhere" / package.plan.contract
    shutil.copytree(sealed, elsewhere)
    assert pipeline.seal(package, elsewhere) is False
    assert pipeline.verify_deep(package, elsewhere) == ((), ())
    assert pipeline.verify(package, elsewhere) == ((), ())


def test_every_sm90_kernel_is_sealed(package: pipeline.Package, sealed: Path) -> None:
    facts, problems = lock.read((sealed / toolchain.NAME).read_bytes(), toolchain.NAME)
    assert not problems
    for kernel in package.plan.kernels:
        if kernel.target == "sm90":
            assert any(key.startswith(f"sm90.{kernel.module}.ptx.") for key in facts), kernel.module


@pytest.mark.parametrize(
    ("pattern", "replacement", "code"),
    [
        (r'"toolchain.triton": "[^"]*"', '"toolchain.triton": "9.9.9"', toolchain.TOOLCHAIN_CHANGED),
        (r'(\.ptx\.[^"]*": "sha256:)....', r"\g<1>0000", toolchain.TOOLCHAIN_CHANGED),
        (r'(act\.source": "sha256:)....', r"\g<1>0000", toolchain.NOT_SEALED),
        (r'"~end": true\n}\n', "", lock.TRUNCATED),
    ],
)
def test_what_differs_is_named(
    package: pipeline.Package, sealed: Path, tmp_path: Path, pattern: str, replacement: str, code
) -> None:
    folder = tmp_path / package.plan.contract
    shutil.copytree(sealed, folder)
    path = folder / toolchain.NAME
    text, count = re.subn(pattern, replacement, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    assert codes(package, folder) == {code.id}


def test_missing_seal_is_named(package: pipeline.Package, tmp_path: Path) -> None:
    folder = tmp_path / package.plan.contract
    pipeline.save(package, folder)
    assert codes(package, folder) == {toolchain.NOT_SEALED.id}


def test_kernels_hold_no_instruction_whose_bits_are_not_named(package: pipeline.Package, sealed: Path) -> None:
    """The laws of each implementation scan further; these hold for all, and the products use the tensor cores."""
    for kernel in package.plan.kernels:
        if kernel.target == "sm90":
            variants = toolchain.compiled(package.plan.contract, kernel, sealed.parent)
            assert variants
            for name, variant in variants.items():
                assert not set(offences(variant.ptx)) & set(NEVER), name
            if kernel.op == "matmul":
                assert any(re.search(r"\b(wgmma\.mma_async|mma\.sync)", each.ptx) for each in variants.values())


def test_the_scan_sees_what_it_looks_for(package: pipeline.Package) -> None:
    planted = "atom.global.add.f32 x; div.full.f32 a, b, c; sqrt.approx.f32 a, b; rsqrt.approx.ftz.f32 a, b;"
    assert set(NEVER) <= set(offences(planted))


def test_free_launch_parameters_give_other_ptx_of_the_same_source(package: pipeline.Package, sealed: Path) -> None:
    kernel = next(k for k in package.plan.kernels if k.path == "sm90/kernels/attn_norm.py")
    other = replace(kernel, free_launch=((None, {"rows": 2, "num_warps": 2}),))
    assert other.launch != kernel.launch
    assert replace(other, free_launch=()) == replace(kernel, free_launch=())
