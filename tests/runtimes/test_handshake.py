"""Each way in which a handshake or a weight sync can be faulty, injected: refused, with a reason, and nothing moved."""

from __future__ import annotations

import importlib
import secrets
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.runtimes.conftest import CONTRACTS, compile_contract

NAME = "tiny_dense"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """The generated package, imported and bound as the trainer, as far as that goes without a framework."""
    generated = tmp_path_factory.mktemp("generated")
    compile_contract(CONTRACTS / f"{NAME}.yaml", generated)
    sys.path.insert(0, str(generated))
    names = ("guard", "handshake", "transports", "weights", "regions", "ledger", "probes", "bits")
    modules = SimpleNamespace(**{name: importlib.import_module(f"{NAME}.{name}") for name in names})
    modules.regions.bind("trainer", "cpu")
    modules.regions.BOUND.ledger.record("INSTALL")
    yield modules
    sys.path.remove(str(generated))


@pytest.fixture(scope="module")
def facts(package: SimpleNamespace) -> dict[str, Any]:
    return package.handshake.statement(rank=0, world=1, sizes={"tp": 1})


def speaks(facts: dict[str, Any], side: str, /, **changed: Any) -> dict[str, Any]:
    """A statement of `side`, with a nonce of its own and the given facts changed."""
    return {**facts, "side": side, "nonce": secrets.token_hex(16), **changed}


def test_both_sides_agree(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    h = package.handshake
    ours, theirs = speaks(facts, "trainer"), speaks(facts, "engine")
    own, peer = h.hello([ours]), h.hello([theirs])
    first = h.agree(own, peer, h.seal(peer, own), ours)
    second = h.agree(peer, own, h.seal(own, peer), theirs)
    assert first == second


def test_probes_see_every_region(facts: dict[str, Any]) -> None:
    assert facts["probes"].keys() == facts["facts"]["contract.json"]["regions"].keys()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"identities": {"semantic": "x", "numerical_policy": "y", "deployment": "z"}}, "differ in identities"),
        ({"contract": "another"}, "differ in contract"),
        ({"bound": "sha256:0"}, "differ in bound"),
        ({"probes": {"attn_norm": "0"}}, "differ in probes"),
        ({"torch": "2.0.0"}, "differ in torch"),
        ({"target": "sm90"}, "differ in target"),
        ({"installed": False}, "no clean INSTALL"),
        ({"protocol": 0}, "protocol"),
        ({"side": "trainer"}, "came back"),
    ],
)
def test_a_different_peer_is_refused(
    package: SimpleNamespace, facts: dict[str, Any], fault: dict[str, Any], reason: str
) -> None:
    h = package.handshake
    own, peer = h.hello([speaks(facts, "trainer")]), h.hello([speaks(facts, "engine", **fault)])
    with pytest.raises(h.RefusedError, match=reason):
        h.seal(own, peer)


def test_the_structural_difference_is_shown(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    """One constant changed on one side: its name and both values are in the error."""
    h = package.handshake
    key = "numerical_policy.cpu.kernels.down.constants.leaves"
    lock = {**facts["facts"], key: 16}
    changed = {"facts": lock, "identities": {**facts["identities"], "numerical_policy": "sha256:other"}}
    own, peer = h.hello([speaks(facts, "trainer")]), h.hello([speaks(facts, "engine", **changed)])
    with pytest.raises(h.RefusedError, match=rf"{key}: {facts['facts'][key]} -> 16"):
        h.seal(own, peer)


@pytest.mark.parametrize("peer", [None, {}, {"nonces": []}])
def test_absence_is_refused(package: SimpleNamespace, facts: dict[str, Any], peer: Any) -> None:
    h = package.handshake
    with pytest.raises(h.RefusedError, match="said nothing"):
        h.seal(h.hello([speaks(facts, "trainer")]), peer)
    with pytest.raises(h.RefusedError, match="no rank made a statement"):
        h.hello([])


def test_one_sided_is_refused(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    h = package.handshake
    ours, theirs = speaks(facts, "trainer"), speaks(facts, "engine")
    with pytest.raises(h.RefusedError, match="gave no seal"):
        h.agree(h.hello([ours]), h.hello([theirs]), None, ours)


def test_replay_is_refused(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    """A recorded hello and seal of the engine do not fit a fresh hello of the trainer."""
    h = package.handshake
    ours, theirs = speaks(facts, "trainer"), speaks(facts, "engine")
    recorded, seal = h.hello([theirs]), h.seal(h.hello([theirs]), h.hello([ours]))
    again = speaks(facts, "trainer")
    with pytest.raises(h.RefusedError, match="stale or replayed"):
        h.agree(h.hello([again]), recorded, seal, again)


def test_a_stale_statement_is_refused(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    h = package.handshake
    old, theirs = speaks(facts, "trainer"), speaks(facts, "engine")
    own, peer = h.hello([old]), h.hello([theirs])
    with pytest.raises(h.RefusedError, match="stale"):
        h.agree(own, peer, h.seal(peer, own), speaks(facts, "trainer"))


def test_rank_divergence_is_refused(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    h = package.handshake
    first, second = (speaks(facts, "engine", rank=rank, world=2) for rank in (0, 1))
    with pytest.raises(h.RefusedError, match=r"rank 1 is not what rank 0 is:\n  probes.attn: "):
        h.hello([first, {**second, "probes": {**second["probes"], "attn": "0"}}])
    with pytest.raises(h.RefusedError, match="ranks 0 to 1 are due"):
        h.hello([first])
    assert len(h.hello([second, first])["nonces"]) == 2


def _shake_both(package: SimpleNamespace, facts: dict[str, Any], transports: list[Any]) -> list[Any]:
    results: list[Any] = [None, None]

    def side(i: int, transport: Any) -> None:
        mine = speaks(facts, transport.side)
        try:
            results[i] = package.transports.shake(transport, package.handshake.hello([mine]), mine)
        except package.handshake.RefusedError as refusal:
            results[i] = refusal

    threads = [threading.Thread(target=side, args=(i, t)) for i, t in enumerate(transports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_through_a_folder(package: SimpleNamespace, facts: dict[str, Any], tmp_path: Path) -> None:
    folders = [package.transports.Folder(path=tmp_path, side=side, seconds=20) for side in ("engine", "trainer")]
    first, second = _shake_both(package, facts, folders)
    assert isinstance(first, package.handshake.Agreement)
    assert first == second
    # What that handshake left behind is no handshake.
    alone = package.transports.Folder(path=tmp_path, side="trainer", seconds=0.1)
    mine = speaks(facts, "trainer")
    with pytest.raises(package.handshake.RefusedError, match="stale or replayed"):
        package.transports.shake(alone, package.handshake.hello([mine]), mine)


def test_through_a_store(package: SimpleNamespace, facts: dict[str, Any]) -> None:
    store = dist.HashStore()
    sides = [package.transports.Store(store=store, side=side, seconds=20) for side in ("engine", "trainer")]
    first, second = _shake_both(package, facts, sides)
    assert isinstance(first, package.handshake.Agreement)
    assert first == second


def test_nobody_there(package: SimpleNamespace, facts: dict[str, Any], tmp_path: Path) -> None:
    mine = speaks(facts, "engine")
    for transport in (
        package.transports.Folder(path=tmp_path, side="engine", seconds=0.1),
        package.transports.Store(store=dist.HashStore(), side="engine", seconds=0.1),
    ):
        with pytest.raises(package.handshake.RefusedError, match="no hello of the trainer"):
            package.transports.shake(transport, package.handshake.hello([mine]), mine)


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        "matrix": torch.randn(8, 6, generator=generator).to(torch.bfloat16),
        "A_log": torch.randn(6, generator=generator),
    }


def test_fingerprints_do_not_depend_on_the_cut(package: SimpleNamespace) -> None:
    w, full = package.weights, tensors()["matrix"]
    whole = w.merge([w.fingerprints([w.whole("matrix", full)])])
    by_rows = [w.fingerprints([w.rows("matrix", full[r * 4 : r * 4 + 4], 8, r * 4)]) for r in (0, 1)]
    by_columns = [w.fingerprints([w.columns("matrix", full[:, r * 3 : r * 3 + 3], r, 2)]) for r in (0, 1)]
    replicas = [w.fingerprints([w.whole("matrix", full)])] * 2
    assert whole == w.merge(by_rows) == w.merge(by_columns) == w.merge(replicas)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("matrix", lambda t: t.roll(1, 0)),
        ("matrix", lambda t: t.roll(1, 1)),
        ("matrix", lambda t: t.t().contiguous().view(8, 6)),
        ("matrix", lambda t: torch.where(torch.arange(48).view(8, 6) == 17, -t, t)),
        ("A_log", lambda t: t.to(torch.bfloat16)),
        ("A_log", lambda t: t.to(torch.bfloat16).float()),
        ("A_log", lambda t: t[:5]),
        ("A_log", None),
    ],
)
def test_a_faulty_sync_is_named(package: SimpleNamespace, name: str, fault: Any) -> None:
    w, sent = package.weights, tensors()
    held = {
        key: (fault(t) if key == name and fault else t) for key, t in sent.items() if not (key == name and not fault)
    }
    ours, theirs = (w.merge([w.fingerprints(w.whole(k, t) for k, t in side.items())]) for side in (sent, held))
    assert [problem.split(":")[0].split(" ")[0] for problem in w.disagreements(ours, theirs)] == [name]
    assert w.disagreements(ours, ours) == []


def test_ranks_that_hold_other_copies(package: SimpleNamespace) -> None:
    w, full = package.weights, tensors()["matrix"]
    one, other = (w.fingerprints([w.whole("matrix", t)]) for t in (full, full + 1))
    with pytest.raises(ValueError, match="rank 1 holds another copy of matrix"):
        w.merge([one, other])
    with pytest.raises(ValueError, match="do not add up"):
        w.merge([w.fingerprints([w.rows("matrix", full[:4], 8, 0)])])


def test_a_load_that_cannot_be_whole_copies_nothing(package: SimpleNamespace) -> None:
    w, sent = package.weights, tensors()
    for broken in (
        {"matrix": sent["matrix"]},
        {**sent, "extra": sent["A_log"]},
        {**sent, "A_log": sent["A_log"].to(torch.bfloat16)},
    ):
        held = {key: torch.zeros_like(t) for key, t in sent.items()}
        with pytest.raises(ValueError, match=r"A_log|extra"):
            w.load([w.whole(key, t) for key, t in held.items()], broken)
        assert all((t == 0).all() for t in held.values())
