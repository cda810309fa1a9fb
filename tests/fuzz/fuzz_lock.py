"""Damaged locks through the reader of locks and through `verify`: `python -m tests.fuzz.fuzz_lock COUNT [SEED]`.

Every damage must be named: by a diagnostic of the lock, or as drift. Prints how many inputs gave each code.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from isoexec_compiler import drift, lock
from tests.fuzz.mutate import arbitrary, mutant

FACTS = {
    "contract": "x",
    "targets": "cpu sm90",
    "semantic.model.config.rms_norm_eps": 1e-06,
    "semantic.regions.a.width": 64,
    "numerical_policy.cpu.kernels.a.use": "rms_norm_rows",
    "numerical_policy.cpu.kernels.a.source": "sha256:" + "0" * 64,
    "numerical_policy.cpu.cases.trainer_fwd.a": "a",
    "deployment.sm90.kernels.a.launch.rows_any.num_warps": 4,
    "files.cpu/kernels/a.py": "sha256:" + "1" * 64,
}


def outcome(data: bytes, whole: bytes) -> list[str]:
    """The codes that reading and comparing a damaged lock give. Raises AssertionError when damage goes unnoticed."""
    sealed, problems = lock.read(data, "isoexec.lock")
    if problems:
        assert len(problems) == 1
        return [problems[0].code]
    wanted, _ = lock.read(whole, "isoexec.lock")
    found = drift.compare(wanted, sealed, {})
    named = {one.code for one in found} - {drift.MISSING.id}
    assert bool(named) == (data != whole), data
    return sorted(named) or ["read"]


def main(count: int, seed: int) -> None:
    """Run `count` inputs drawn from `seed`."""
    random = Random(seed)
    from isoexec_compiler.identity import identities

    whole = lock.dumps({**FACTS, **identities(FACTS)}).encode()
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        data = arbitrary(random) if random.random() < 0.1 else mutant(random, whole)
        outcomes.update(outcome(data, whole))
    print(f"{count:,} inputs from seed {seed}")
    print("  ".join(f"{code} {number:,}" for code, number in sorted(outcomes.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
