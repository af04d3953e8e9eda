"""Limits on open files, and on the connections and rows that need open files."""

from __future__ import annotations

import resource

from msgspec.structs import replace

from orchestrator.server.settings import Settings

MAX_FILES = 65_536
OTHER_FILES = 128
"""Open files that the database, the log, sockets and engines need."""
LEAST_CONNECTIONS, LEAST_ROWS = 32, 8


def allow_many_files() -> int:
    """Raise this process's limit on open files from its default, usually 1,024, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_FILES
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    if soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def fitted(settings: Settings, files: int) -> Settings:
    """Return the settings, with fewer connections and rows if `files` open files would not suffice.

    A connection may need two open files: its socket, and either a stored file or a socket to an upstream.
    """
    free = max(0, files - OTHER_FILES)
    upstreams = max(1, len(settings.upstreams), settings.most_upstreams)
    rows = min(settings.most_in_flight, max(LEAST_ROWS, free // 4 // upstreams))
    connections = (free - rows * upstreams) // 3
    most = min(settings.max_connections, max(LEAST_CONNECTIONS, connections))
    calls = min(settings.max_calls, max(1, most // 4))
    at_once = min(settings.max_concurrency, rows)
    return replace(settings, max_concurrency=at_once, most_in_flight=rows, max_connections=most, max_calls=calls)
