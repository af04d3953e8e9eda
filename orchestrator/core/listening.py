"""Listening sockets and their addresses."""

from __future__ import annotations

import ipaddress
import os
import socket
from urllib.parse import urlsplit

from orchestrator.core.errors import BackendError, UsageError

_USUAL_PORTS = {"http": 80, "https": 443}


def bound(host: str, port: int) -> socket.socket:
    """Return a listening socket, which queues clients until a server uses it. Port 0 picks a free port.

    Raises UsageError if the host is not an address, BackendError if the address cannot be used.
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
    """Return a host as written in a URL: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def host_and_port(url: str) -> tuple[str | None, int | None]:
    """Return a URL's host and port. The port defaults to that of the scheme; a missing part is None."""
    parts = urlsplit(url)
    return parts.hostname, parts.port or _USUAL_PORTS.get(parts.scheme)


def is_local_url(url: str) -> bool:
    """True if a URL points to this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback(listener: socket.socket) -> bool:
    """True if only programs on this machine can reach the socket."""
    return ipaddress.ip_address(listener.getsockname()[0]).is_loopback
