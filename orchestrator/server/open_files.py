"""How many files this process may have open, and how many of them are connections and rows: each is one."""

from __future__ import annotations

import resource
from dataclasses import replace

from orchestrator.server.settings import Settings

MAX_FILES = 65_536
OTHER_FILES = 128
"""Database, log, sockets, engines."""
LEAST_CONNECTIONS, LEAST_ROWS = 32, 8


def allow_many_files() -> int:
    """Let this process have many open files, and say how many it may have.

    The usual limit of 1,024 is a default, not a bound.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def fitted(settings: Settings, files: int) -> Settings:
    """The settings for a process that may have so many open files: where they are few, so are connections and rows.

    A connection may need two: its own, and that of the file or the upstream that it asks for.
    """
    free = max(0, files - OTHER_FILES)
    upstreams = max(1, len(settings.upstreams), settings.most_upstreams)
    rows = min(settings.max_concurrency, max(LEAST_ROWS, free // 4 // upstreams))
    connections = (free - rows * upstreams) // 3
    most = min(settings.max_connections, max(LEAST_CONNECTIONS, connections))
    calls = min(settings.max_calls, max(1, most // 4))
    return replace(settings, max_concurrency=rows, max_connections=most, max_calls=calls)
