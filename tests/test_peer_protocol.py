"""Every interleaving of the protocols of `peer_memory`, as models: no call can hang, and each reads its own values.

A model says what a rank does in which order; the search runs the ranks in every order of their steps. Controls: a
protocol with one rule left out is seen to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

State = Any
Steps = Callable[[State], Iterator[State]]


def search(start: State, steps: Steps, done: Callable[[State], bool]) -> tuple[int, list[State]]:
    """How many states can be reached, and those that are not done and have no next step: there a call hangs."""
    seen, pending, stuck = {start}, [start], []
    while pending:
        state = pending.pop()
        following = list(steps(state))
        if not following and not done(state):
            stuck.append(state)
        for new in following:
            if new not in seen:
                seen.add(new)
                pending.append(new)
    return len(seen), stuck


# Words. One program of two warps on each of two ranks, three calls in a row. A warp reads the number of the call, sends
# its word, and waits until the words of both warps carry the numbers that the warps read; then the program stores the
# number. (number, words, warps) of each rank: words[half][warp] = (number, value), warps[warp] = (step, number).
CALLS, WARPS = 3, 2
READ, SEND, WAIT = range(3)
WRONG = "a word of another call was taken"


def fresh() -> State:
    return (0, 0, (((0, 0),) * WARPS,) * 2, ((READ, 0),) * WARPS)


def put(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def words(early: bool) -> Steps:
    """`early`: the first warp stores the number of the call when it has read it, and not when all have."""

    def steps(state: State) -> Iterator[State]:
        for rank in (0, 1) if state != WRONG else ():
            finished, number, held, warps = state[rank]
            if finished == CALLS:
                continue
            for warp, (step, mine) in enumerate(warps):
                if step == READ:
                    after = number + 1 if early and warp == 0 else number
                    yield put(state, rank, (finished, after, held, put(warps, warp, (SEND, number + 1))))
                elif step == SEND:
                    other = state[1 - rank]
                    half = put(other[2][mine & 1], warp, (mine, finished))
                    sent = put(state, 1 - rank, (*other[:2], put(other[2], mine & 1, half), other[3]))
                    yield put(sent, rank, (finished, number, held, put(warps, warp, (WAIT, mine))))
            if all(step == WAIT for step, _ in warps):
                arrived = [held[mine & 1][warp] for warp, (_, mine) in enumerate(warps)]
                if all(word[0] == mine for word, (_, mine) in zip(arrived, warps, strict=True)):
                    after = number if early else warps[0][1]
                    right = all(value == finished for _, value in arrived)
                    ready = put(state, rank, (finished + 1, after, held, ((READ, 0),) * WARPS))
                    yield ready if right else WRONG

    return steps


def ended(state: State) -> bool:
    return state != WRONG and all(rank[0] == CALLS for rank in state)


def test_words_always_arrive() -> None:
    reached, stuck = search((fresh(), fresh()), words(early=False), ended)
    assert reached > 200
    assert not stuck


def test_a_number_stored_early_is_read_by_a_late_warp() -> None:
    """It then sends a word that nobody waits for, or that is taken for the next call's."""
    _, stuck = search((fresh(), fresh()), words(early=True), ended)
    assert WRONG in stuck
    assert len(stuck) > 1


# Plain writes. A rank's calls as steps on the buffers: write to all ranks' buffer, meet at the barrier, read the own
# buffer. (steps done, {buffer: call number of what each rank wrote}) of each rank.
KINDS = {
    "all-reduce": ("write parts", "meet", "read parts", "write results", "meet", "read results"),
    "reduce-scatter": ("write parts", "meet", "read parts", "meet"),
    "gather": ("write parts", "meet", "read parts", "meet"),
}


def plain(program: list[tuple[int, str]], ranks: int) -> Steps:
    def steps(state: State) -> Iterator[State]:
        places, buffers = state
        for rank, place in enumerate(places):
            if place == len(program):
                continue
            call, step = program[place]
            action, _, buffer = step.partition(" ")
            on = put(places, rank, place + 1)
            if action == "write":
                for receiver in range(ranks):
                    at = (receiver * 2 + (buffer == "results")) * ranks + rank
                    buffers = put(buffers, at, call)
                yield on, buffers
                buffers = state[1]
            elif action == "read":
                at = (rank * 2 + (buffer == "results")) * ranks
                assert buffers[at : at + ranks] == (call,) * ranks, f"{step} of call {call} reads another call's"
                yield on, buffers
        meeting = {places[rank] for rank in range(ranks)}
        if len(meeting) == 1 and (place := meeting.pop()) < len(program) and program[place][1] == "meet":
            yield (place + 1,) * ranks, buffers

    return steps


def programs(kinds: dict[str, tuple[str, ...]], calls: int) -> Iterator[list[tuple[int, str]]]:
    """The steps of every sequence of so many calls."""
    for names in product(kinds, repeat=calls):
        yield [(call, step) for call, name in enumerate(names, 1) for step in kinds[name]]


def hangs(kinds: dict[str, tuple[str, ...]], calls: int, ranks: int) -> int:
    """How many states of how many sequences hang. Raises AssertionError where a read sees another call's values."""
    found = 0
    for program in programs(kinds, calls):
        end = (len(program),) * ranks
        start = ((0,) * ranks, (0,) * (2 * ranks * ranks))
        found += len(search(start, plain(program, ranks), lambda state, end=end: state[0] == end)[1])
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_read_sees_its_own_call(ranks: int) -> None:
    assert not hangs(KINDS, 3, ranks)


def test_without_its_last_barrier_a_reduce_scatter_is_overwritten() -> None:
    hasty = {**KINDS, "reduce-scatter": KINDS["reduce-scatter"][:-1]}
    with pytest.raises(AssertionError, match="another call's"):
        hangs(hasty, 2, 2)
