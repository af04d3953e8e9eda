"""A small HTTP server in a thread of this process: the pages, and the webhooks of providers."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from orchestrator.core.connections import Connections
from orchestrator.core.errors import BackendError, UsageError
from orchestrator.core.guarded_server import Server, guarded

STOP_SECONDS = 1
"""How long answers that are under way may take when the server is to end."""


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens already: what comes before the thread does waits in it. Port 0 takes a free one.

    Raises UsageError for a host that leads nowhere, BackendError for an address that cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{host} is not an address to listen on: {why}") from error
    try:
        return socket.create_server(address, family=family)
    except OSError as error:
        raise BackendError(
            f"cannot listen at {host}:{port}: {os.strerror(error.errno or 0)}",
            hint="choose another port; 0 takes a free one",
        ) from error


def url_host(host: str) -> str:
    """A host as it stands in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


@contextmanager
def threaded(app: Any, listener: socket.socket, connections: Connections, name: str) -> Iterator[None]:
    """Serve an ASGI application at a socket until the block ends, which closes it; `name` is the thread's."""
    with closing(listener):
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
        thread = threading.Thread(target=server.run, args=([listener],), name=name, daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()
