"""Random inputs through the reader: `python -m tests.fuzz.fuzz_reader COUNT [SEED]`.

Prints how many were read and how many gave each code; stops at the first input that breaks an invariant, and shows it.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from random import Random

from isoexec_compiler.source import read
from tests.fuzz.invariants import check_read
from tests.fuzz.mutate import arbitrary, mapping, mutant, seeds, write

SLOW_SECONDS = 2.0


def make(random: Random, start: list[bytes]) -> tuple[bytes, str]:
    """One input and the name it is read under."""
    name = random.choice(["fuzz.yaml", "fuzz.yaml", "fuzz.json"])
    kind = random.random()
    if kind < 0.15:
        return arbitrary(random), name
    if kind < 0.6:
        return mutant(random, random.choice(start)), name
    data = mapping(random)
    text = json.dumps(data, indent=random.choice([None, 1])) if name == "fuzz.json" else write(random, data)
    valid = kind < 0.7
    return text.encode() if valid else mutant(random, text.encode()), name


def main(count: int, seed: int) -> None:
    """Run `count` inputs drawn from `seed`."""
    random, start = Random(seed), seeds()
    outcomes: Counter[str] = Counter()
    slowest = 0.0
    for _ in range(count):
        data, name = make(random, start)
        began = time.process_time()
        try:
            check_read(data, name)
        except BaseException:
            print(f"broken by {name}: {data!r}", file=sys.stderr)
            raise
        slowest = max(slowest, time.process_time() - began)
        assert slowest < SLOW_SECONDS, data
        outcomes.update(sorted({problem.code for problem in read(data, name)[1]}) or ["read"])
    print(f"{count:,} inputs from seed {seed}; the slowest took {slowest:.3f} s with all checks")
    print("  ".join(f"{outcome} {number:,}" for outcome, number in sorted(outcomes.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
