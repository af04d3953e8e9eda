"""A small HTTP server in a thread of this process, for the pages and for provider webhooks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from orchestrator.core.connections import Connections
from orchestrator.core.guarded_server import Server, guarded

STOP_SECONDS = 1
"""Seconds that unfinished answers get when the server stops."""


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
