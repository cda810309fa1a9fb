"""Random contracts through schema, binder and checks: `python -m tests.fuzz.fuzz_contracts COUNT [SEED]`.

Prints how many passed and how many gave each code; stops at the first that breaks an invariant, and shows it.
"""

from __future__ import annotations

import sys
from collections import Counter
from random import Random

from isoexec_compiler import pipeline
from isoexec_compiler.codes import all_codes
from isoexec_compiler.contract_text import contract_text
from isoexec_compiler.report import render_text
from isoexec_compiler.source import readable
from tests.fuzz.contracts import kept, mutant, text
from tests.fuzz.invariants import check_inside

NAME = "fuzz.json"


def check_load(data: bytes) -> list[str]:
    """Load `data`, assert what must hold of the outcome, and return the codes it gave."""
    contract, problems = pipeline.load(data, NAME)
    assert (contract is None) == bool(problems)
    lines = readable(data).split("\n")
    for problem in problems:
        assert problem.code in all_codes()
        assert problem.span is not None
        assert problem.span.file == NAME
        for span in (problem.span, *(label.span for label in problem.labels)):
            check_inside(span, lines)
        for sentence in (problem.message, problem.note or "", problem.help or ""):
            assert "None" not in sentence.split()
            assert "Traceback" not in sentence
    render_text(problems, {NAME: "\n".join(lines)})
    if contract:
        again, _ = pipeline.load(contract_text(contract).encode(), "again.yaml")
        assert again == contract
    return sorted({problem.code for problem in problems}) or ["passed"]


def main(count: int, seed: int) -> None:
    """Run `count` inputs drawn from `seed`."""
    random, contracts = Random(seed), kept()
    outcomes: Counter[str] = Counter()
    for _ in range(count):
        data = text(mutant(random, random.choice(contracts)))
        try:
            outcomes.update(check_load(data))
        except BaseException:
            print(f"broken by {data.decode()}", file=sys.stderr)
            raise
    print(f"{count:,} inputs from seed {seed}")
    print("  ".join(f"{outcome} {number:,}" for outcome, number in sorted(outcomes.items())))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
