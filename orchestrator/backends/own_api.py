"""The client of our own server, on its Unix socket."""

from __future__ import annotations

from pathlib import Path

import httpx2

from orchestrator.backends.calls import certificates
from orchestrator.backends.http_api import HttpAPI

SILENT_SECONDS = 600.0
"""The server is on this machine: it may be busy for long, and is not cut off."""
NO_KEY = "none-is-asked-for"


def over_unix_socket(socket: Path) -> HttpAPI:
    """Return a client of the server that listens on a Unix socket."""
    return HttpAPI(unix_client(socket, "http://orch/v1", SILENT_SECONDS), NO_KEY)


def unix_client(socket: Path, base_url: str, timeout: float) -> httpx2.Client:
    """Return an HTTP client over a Unix socket, without TLS."""
    transport = httpx2.HTTPTransport(uds=str(socket), verify=certificates("http"))
    return httpx2.Client(base_url=base_url, transport=transport, timeout=timeout)
