"""What the batch servers of an engine say of themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx2

from orchestrator.backends.own_api import unix_client
from orchestrator.pipeline.backend_handles import last_to_fail
from orchestrator.server.host import socket_path
from orchestrator.settings.home import Home


def fetch_health(home: Home, backend: str) -> dict[str, Any] | None:
    """How a backend's server is, or None where none runs."""
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
    """The upstream that failed last, of a server that has work and none of whose upstreams answers."""
    return last_to_fail(health) if health["running_batches"] else None
