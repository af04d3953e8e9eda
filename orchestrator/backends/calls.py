"""How long a call to a provider may take, and where it may be redirected to.

A time-out of the HTTP client is about silence: an answer that drips in, a byte at a time, never reaches it. So each
call has an end as well. A control call may take a minute in all; a transfer goes on as long as its bytes flow.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import httpcore2
import httpx2

CONNECT_SECONDS = 10.0
QUIET_SECONDS = 30.0
"""A control call may be silent for so long."""
CONTROL_SECONDS = 60.0
ASK_SECONDS = 60.0
"""One row at a synchronous endpoint has so long to be answered."""
SLOW_SECONDS, SLOW_BYTES = 60.0, 16 * 1024
"""A transfer that brings less than so many bytes in this time is given up."""


class _Pace:
    """When the call at hand ends: at a fixed moment, or when what comes gets too slow."""

    def __init__(self, seconds: float | None, slow_seconds: float, slow_bytes: int) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._slow_seconds, self._slow_bytes = slow_seconds, slow_bytes
        self._began: float | None = None
        self._bytes = 0

    def left(self, timeout: float | None) -> float | None:
        """How long the next read or write may be silent. Raises ReadTimeout where the call's time is over."""
        now = time.monotonic()
        if self._until is not None:
            if now >= self._until:
                raise httpcore2.ReadTimeout("the answer took too long")
            return self._until - now if timeout is None else min(timeout, self._until - now)
        if self._began is not None and now - self._began >= self._slow_seconds:
            if self._bytes < self._slow_bytes:
                raise httpcore2.ReadTimeout("the transfer is too slow")
            self._began, self._bytes = now, 0
        return timeout

    def came(self, size: int) -> None:
        """So many bytes of the answer have come."""
        self._began = time.monotonic() if self._began is None else self._began
        self._bytes += size


class _Current(threading.local):
    pace: _Pace | None = None


_current = _Current()


@contextmanager
def control(seconds: float = CONTROL_SECONDS) -> Iterator[None]:
    """The calls of this thread in the block take no longer than this, all together."""
    with _paced(_Pace(seconds, SLOW_SECONDS, SLOW_BYTES)):
        yield


@contextmanager
def transfer(slow_seconds: float = SLOW_SECONDS, slow_bytes: int = SLOW_BYTES) -> Iterator[None]:
    """The calls of this thread in the block may take as long as bytes come."""
    with _paced(_Pace(None, slow_seconds, slow_bytes)):
        yield


@contextmanager
def _paced(pace: _Pace) -> Iterator[None]:
    before, _current.pace = _current.pace, pace
    try:
        yield
    finally:
        _current.pace = before


@cache
def certificates() -> ssl.SSLContext:
    """The authorities that are trusted. To read them takes 20 ms, and each client would do it for itself."""
    return httpx2.create_ssl_context()


def bounded(client: httpx2.Client, *, stay: bool = False) -> httpx2.Client:
    """The client, its calls held to `control` and `transfer`; a redirect is followed only by what reads.

    With `stay` it is followed only to the same host: a key in a header of its own would go along.
    """
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = _Network(pool._network_backend)

    def watch(response: httpx2.Response) -> None:
        if not response.has_redirect_location:
            return
        here = response.request.url
        try:
            to = here.join(response.headers["location"])
        except httpx2.InvalidURL as error:
            raise httpx2.RemoteProtocolError("it redirects to an invalid address") from error
        leaves = (to.scheme, to.host, to.port) != (here.scheme, here.host, here.port)
        if response.request.method != "GET" or (stay and leaves):
            raise httpx2.RemoteProtocolError(f"it redirects the call to {to.host}")

    client.event_hooks = {"request": [], "response": [watch]}
    return client


def timeouts(silent: float) -> httpx2.Timeout:
    """Of calls that may be silent for so long."""
    return httpx2.Timeout(silent, connect=min(silent, CONNECT_SECONDS))


class _Network(httpcore2.NetworkBackend):
    """Connections whose reads and writes ask how much of the call's time is left."""

    def __init__(self, plain: httpcore2.NetworkBackend) -> None:
        self._plain = plain

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        return _Stream(self._plain.connect_tcp(host, port, timeout, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._plain.connect_unix_socket(path, timeout, socket_options))

    def sleep(self, seconds: float) -> None:
        self._plain.sleep(seconds)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, plain: httpcore2.NetworkStream) -> None:
        self._plain = plain

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        pace = _current.pace
        data = self._plain.read(max_bytes, timeout if pace is None else pace.left(timeout))
        if pace is not None:
            pace.came(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        pace = _current.pace
        self._plain.write(buffer, timeout if pace is None else pace.left(timeout))

    def close(self) -> None:
        self._plain.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._plain.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)
