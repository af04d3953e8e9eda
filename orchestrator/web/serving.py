"""Where the pages are served, and under which names."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager

from starlette.applications import Starlette

from orchestrator.core.connections import Connections
from orchestrator.core.threaded_server import threaded, url_host

MOST_CONNECTIONS = 256


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs of this machine reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def hosts_of(listener: socket.socket, named: Iterable[str]) -> frozenset[str]:
    """The Host headers that are ours: the names that were given, with or without a port, and those of loopback."""
    port = listener.getsockname()[1]
    address = url_host(str(listener.getsockname()[0]))
    own = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(listener) else []
    found = {f"{name}:{port}" for name in (address, *own, *named)} | set(named)
    return frozenset(name.lower() for name in found)


def serving(app: Starlette, listener: socket.socket) -> AbstractContextManager[None]:
    """Serve in a thread of this process until the block ends."""
    return threaded(app, listener, Connections(MOST_CONNECTIONS), "web")
