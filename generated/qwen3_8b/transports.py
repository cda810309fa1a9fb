# SPDX-License-Identifier: Apache-2.0
"""How the two sides' messages travel: through a folder that both see, or through a torch.distributed store.

The messages are the same whatever carries them; a framework's own remote calls carry them as well.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from .handshake import SIDES, Agreement, Hello, RefusedError, agree, seal


class Transport(Protocol):
    """`put` publishes this side's message of a kind, `get` waits for the other side's or raises RefusedError."""

    side: str

    def put(self, kind: str, message: Any) -> None: ...

    def get(self, kind: str) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """Messages as files `<side>.<kind>.json`, each written whole."""

    path: Path
    side: str
    seconds: float = 60.0

    def put(self, kind: str, message: Any) -> None:
        file = self.path / f"{self.side}.{kind}.json"
        partial = file.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(message))
        os.replace(partial, file)

    def get(self, kind: str) -> Any:
        file = self.path / f"{SIDES[self.side]}.{kind}.json"
        end = time.monotonic() + self.seconds
        while not file.exists():
            if time.monotonic() > end:
                raise RefusedError(f"no {kind} of the {SIDES[self.side]} within {self.seconds:g} s")
            time.sleep(0.02)
        return json.loads(file.read_text())


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Messages as keys of a torch.distributed store."""

    store: dist.Store
    side: str
    seconds: float = 60.0

    def put(self, kind: str, message: Any) -> None:
        self.store.set(f"isoexec/{self.side}/{kind}", json.dumps(message))

    def get(self, kind: str) -> Any:
        key = f"isoexec/{SIDES[self.side]}/{kind}"
        try:
            self.store.wait([key], timedelta(seconds=self.seconds))
        except (RuntimeError, dist.DistStoreError):
            raise RefusedError(f"no {kind} of the {SIDES[self.side]} within {self.seconds:g} s") from None
        return json.loads(self.store.get(key))


def shake(transport: Transport, own: Hello, mine: Mapping[str, Any]) -> Agreement:
    """The whole handshake from one side: hello for hello, seal for seal. Raises RefusedError."""
    transport.put("hello", own)
    peer = transport.get("hello")
    transport.put("seal", seal(own, peer))
    return agree(own, peer, transport.get("seal"), mine)
