"""Health reports of an engine's batch servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx2

from orchestrator.backends.own_api import unix_client
from orchestrator.core.errors import StorageError
from orchestrator.pipeline.backend_handles import down_for, last_to_fail
from orchestrator.server.host import socket_path
from orchestrator.settings.backends import Backend, OwnServer
from orchestrator.settings.home import Home


def fetch_health(home: Home, backend: str) -> dict[str, Any] | None:
    """Return the health of a backend's server, or None if it does not run."""
    socket: Path = socket_path(home.server(backend))
    if not socket.exists():
        return None
    try:
        with unix_client(socket, "http://orch", 5.0) as client:
            found: dict[str, Any] = client.get("/health").json()
            return found
    except (httpx2.HTTPError, ValueError):
        return None


def lost(health: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the last failed upstream of a server that has work while no upstream answers."""
    return last_to_fail(health) if health["running_batches"] else None


def remedy(first: Mapping[str, Any]) -> str:
    """Return advice about an upstream that takes no rows."""
    if first.get("answers"):
        return "it answers, but takes no rows: correct its address or key, or repair what it names; see `orch doctor`"
    return "is vLLM running? see `orch doctor`"


class ServerHealth:
    """Health of an engine's batch servers; `told` has the last answer of each."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self.told: dict[str, Any] = {}

    def look(self, names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
        """Ask these servers; return the last failed upstream of each that has work while no upstream answers.

        Raises StorageError if a server cannot write.
        """
        found = {}
        for name in names:
            if (health := fetch_health(self._home, name)) is None:
                continue
            self.told[name] = health
            if health["status"] == "storage":
                hint = "free disk space, then run the same command again; nothing is lost"
                raise StorageError(health["problem"], hint=hint)
            if (first := lost(health)) is not None:
                found[name] = first
        return found

    def down(self) -> dict[str, float]:
        """Return for how many seconds no upstream has taken rows, by backend; working backends are left out."""
        return down_for(self.told)

    def given_up(self, settings: Mapping[str, Backend]) -> frozenset[str]:
        """Return the backends without a row taken by any upstream for longer than their patience."""
        return frozenset(
            name
            for name, seconds in self.down().items()
            if isinstance(own := settings.get(name), OwnServer) and seconds > own.patience
        )
