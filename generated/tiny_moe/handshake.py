# SPDX-License-Identifier: Apache-2.0
"""Before weights move, engine and trainer prove to each other that they run the same contract, now, on every rank.

Each rank makes a statement: the identities of its lock, what is really bound in its memory, what its regions compute on
probe inputs, and a fresh nonce. All statements of a side are its hello. A side that accepts the other's hello answers
with a seal over both, nonces included: a seal can be neither recorded and replayed nor given without having seen both.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from . import package
from .bound_objects import table_digest
from .probes import probe
from .regions import BOUND

PROTOCOL = 1
SIDES = {"engine": "trainer", "trainer": "engine"}
Hello = Mapping[str, Any]


class RefusedError(RuntimeError):
    """The handshake failed, nothing was synchronised; the message says why and where the contracts differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Both sides' hellos, sealed by both. `identity` names it in every weight sync that rests on it."""

    identity: str


def statement(*, rank: int, world: int, sizes: Mapping[str, object]) -> dict[str, Any]:
    """What this rank is, with a new nonce."""
    contract = package.load()
    prefix = f"identity.{BOUND.target}."
    return {
        "protocol": PROTOCOL,
        "side": BOUND.side,
        "rank": rank,
        "world": world,
        "sizes": dict(sizes),
        "contract": contract.contract["contract"],
        "target": BOUND.target,
        "identities": {
            "semantic": contract.lock["identity.semantic"],
            "numerical_policy": contract.lock[f"{prefix}numerical_policy"],
            "deployment": contract.lock[f"{prefix}deployment"],
        },
        "installed": BOUND.ledger.holds("INSTALL"),
        "torch": torch.__version__,
        "bound": table_digest(),
        "probes": probe(),
        "facts": {**contract.lock, "contract.json": dict(contract.contract)},
        "nonce": secrets.token_hex(16),
    }


def hello(statements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A side's hello. Raises RefusedError when a rank is absent, speaks twice, or differs from the others."""
    if not statements:
        raise RefusedError("no rank made a statement: the contract's package is not installed there")
    ranks = sorted(s["rank"] for s in statements)
    if ranks != list(range(statements[0]["world"])):
        raise RefusedError(f"ranks {ranks} made statements, ranks 0 to {statements[0]['world'] - 1} are due")
    common = _common(statements[0])
    for other in statements[1:]:
        if _common(other) != common:
            facts = "\n".join(differences(common, _common(other)))
            raise RefusedError(f"rank {other['rank']} is not what rank {statements[0]['rank']} is:\n{facts}")
    return {**common, "nonces": [s["nonce"] for s in sorted(statements, key=lambda s: s["rank"])]}


def _common(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key not in ("rank", "nonce")}


def _check(own: Hello, peer: Hello | None) -> None:
    if not isinstance(peer, Mapping) or not peer.get("nonces"):
        raise RefusedError(f"the {SIDES[own['side']]} said nothing: one-sided contracts are no contracts")
    if peer.get("protocol") != PROTOCOL:
        raise RefusedError(f"the other side speaks protocol {peer.get('protocol')}, this one {PROTOCOL}")
    if peer["side"] != SIDES[own["side"]]:
        raise RefusedError(f"two hellos of the {own['side']}: this side's own message came back")
    for side in (own, peer):
        if not side["installed"]:
            raise RefusedError(f"the {side['side']} has no clean INSTALL in its ledger")
    if set(own["nonces"]) & set(peer["nonces"]):
        raise RefusedError("both sides show the same nonce: a message was replayed")
    for what in ("contract", "target", "identities", "torch", "bound", "probes"):
        if own[what] != peer[what]:
            lines = [*differences(own[what], peer[what], what), *differences(own["facts"], peer["facts"])]
            raise RefusedError(f"{own['side']} and {peer['side']} differ in {what}:\n" + "\n".join(lines[:60]))


def seal(own: Hello, peer: Hello | None) -> str:
    """This side's seal on a hello that it accepts. Raises RefusedError."""
    _check(own, peer)
    return _seal(own, peer)


def _seal(by: Hello, on: Hello | None) -> str:
    text = json.dumps([by, on], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"isoexec handshake {PROTOCOL}\n{text}".encode()).hexdigest()


def agree(own: Hello, peer: Hello | None, peer_seal: str | None, mine: Mapping[str, Any]) -> Agreement:
    """The agreement, once the other side's seal is on this side's fresh hello. Raises RefusedError.

    `mine` is the statement this very rank made: it must be the one whose nonce the hello carries.
    """
    if mine["nonce"] != own["nonces"][mine["rank"]] or _common(mine) != {k: v for k, v in own.items() if k != "nonces"}:
        raise RefusedError(f"rank {mine['rank']} did not make the statement in its side's hello: it is stale")
    _check(own, peer)
    if peer_seal is None:
        raise RefusedError(f"the {SIDES[own['side']]} gave no seal: it did not accept this side")
    assert peer is not None
    if peer_seal != _seal(peer, own):
        raise RefusedError(f"the seal is not the {peer['side']}'s on this hello: it is stale or replayed")
    pair = sorted((_seal(own, peer), peer_seal))
    return Agreement(identity=hashlib.sha256("".join(pair).encode()).hexdigest())


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """`path: ours -> theirs` for every leaf in which two JSON-like values differ."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for key in sorted(ours.keys() | theirs.keys()):
            yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{path}[{i}]")
    elif ours != theirs:
        yield f"  {path}: {ours} -> {theirs}"
