"""The ranks of a trainer, forked from one process that has imported Megatron-core: importing is most of what they cost.

usage: forked.py SCRIPT JOB.json RANKS. Runs `main()` of the script beside this file in each rank, with JOB.json and the
rank as its arguments. When a rank fails the others are stopped.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from pathlib import Path


def run(script: str, job: str, rank: int) -> None:
    """The rank's process: never returns."""
    sys.argv = [script, job, str(rank)]
    code = 1
    try:
        importlib.import_module(Path(script).stem).main()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    script, job, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    importlib.import_module(Path(script).stem)
    importlib.import_module("megatron.core.models.gpt")
    sys.stdout.flush()
    running = set()
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            run(script, job, rank)
        running.add(child)
    while running:
        child, status = os.wait()
        running.discard(child)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
