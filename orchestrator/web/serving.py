"""A thread that serves the pages until a block ends."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from starlette.applications import Starlette

from orchestrator.core.connections import Connections
from orchestrator.core.errors import BackendError, UsageError
from orchestrator.core.guarded_server import Server, guarded

MOST_CONNECTIONS = 256
STOP_SECONDS = 1


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError for a host that leads nowhere, BackendError for an address that
    cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{host} is not an address to listen on: {getattr(error, 'strerror', error)}") from error
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise BackendError(
            f"cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}",
            hint="choose another port; 0 takes a free one",
        ) from error


def is_loopback(listener: socket.socket) -> bool:
    """Whether only programs of this machine reach it."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback


def hosts_of(listener: socket.socket, named: Iterable[str]) -> frozenset[str]:
    """The Host headers that are ours: the names that were given, with or without a port, and those of loopback."""
    port = listener.getsockname()[1]
    address = str(listener.getsockname()[0])
    shown = f"[{address}]" if ":" in address else address
    own = ["localhost", "127.0.0.1", "[::1]"] if is_loopback(listener) else []
    found = {f"{name}:{port}" for name in (shown, *own, *named)} | set(named)
    return frozenset(name.lower() for name in found)


@contextmanager
def serving(app: Starlette, listener: socket.socket) -> Iterator[None]:
    """Serve in a thread of this process until the block ends."""
    with closing(listener):
        connections = Connections(MOST_CONNECTIONS)
        config = guarded(
            app,
            connections,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
        )
        server = Server(config, connections)
        thread = threading.Thread(target=server.run, args=([listener],), name="web", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
