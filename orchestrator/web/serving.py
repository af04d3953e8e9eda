"""Server thread of the pages, and the host names under which the pages are served."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager

from starlette.applications import Starlette

from orchestrator.core.client_limits import Connections
from orchestrator.core.guarded_server import threaded
from orchestrator.core.listening import is_loopback, url_host

MOST_CONNECTIONS = 256


def hosts_of(listener: socket.socket, named: Iterable[str]) -> frozenset[str]:
    """Return the Host headers to accept, in lower case: the listener's address and `named`, all with the port.

    `named` also counts without the port. On loopback, loopback's names with the port count too.
    """
    port = listener.getsockname()[1]
    address = url_host(str(listener.getsockname()[0]))
    own = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(listener) else []
    found = {f"{name}:{port}" for name in (address, *own, *named)} | set(named)
    return frozenset(name.lower() for name in found)


def serving(app: Starlette, listener: socket.socket) -> AbstractContextManager[None]:
    """Serve in a thread of this process until the context ends."""
    return threaded(app, listener, Connections(MOST_CONNECTIONS), "web")
