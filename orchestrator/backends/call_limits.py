"""Time limits of calls to a provider, and limits of their redirects.

A timeout of the HTTP client measures silence: an answer that trickles in byte by byte never triggers it. So each call
also has a total limit. A control call may take a minute in total; a transfer continues while its bytes flow.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import httpcore2
import httpx2

from orchestrator.core.version import __version__

CONNECT_SECONDS = 10.0
QUIET_SECONDS = 30.0
"""Longest silence of a control call, in seconds."""
CONTROL_SECONDS = 60.0
ASK_SECONDS = 60.0
"""Longest wait for one row at a synchronous endpoint, in seconds."""
SLOW_SECONDS, SLOW_BYTES = 60.0, 16 * 1024
"""Minimum speed: orch gives up a transfer of fewer than SLOW_BYTES in SLOW_SECONDS."""


class _Pace:
    """Time limit of the current call: `seconds` of waiting for the network, or a minimum transfer speed.

    Time while the process is suspended (SIGSTOP, a sleeping machine) does not count. An answer that arrived meanwhile
    may have been billed, so orch reads it.
    """

    def __init__(self, seconds: float | None, slow_seconds: float, slow_bytes: int) -> None:
        self._left = seconds
        self._slow_seconds, self._slow_bytes = slow_seconds, slow_bytes
        self._waited: float | None = None
        self._bytes = 0

    @contextmanager
    def wait(self, timeout: float | None) -> Iterator[float | None]:
        """Yield the timeout for one read or write, and count the time it takes. Raises ReadTimeout at the limit."""
        longest = self._longest(timeout)
        began = time.monotonic()
        try:
            yield longest
        finally:
            took = time.monotonic() - began
            took = took if longest is None else min(took, longest)
            if self._left is not None:
                self._left -= took
            if self._waited is not None:
                self._waited += took

    def _longest(self, timeout: float | None) -> float | None:
        if self._left is not None:
            if self._left <= 0:
                raise httpcore2.ReadTimeout("the answer took too long")
            return self._left if timeout is None else min(timeout, self._left)
        if self._waited is not None and self._waited >= self._slow_seconds:
            if self._bytes < self._slow_bytes:
                raise httpcore2.ReadTimeout("the transfer is too slow")
            self._waited, self._bytes = 0.0, 0
        return timeout

    def came(self, size: int) -> None:
        self._waited = self._waited or 0.0
        self._bytes += size


class _Current(threading.local):
    pace: _Pace | None = None


_current = _Current()


@contextmanager
def control(seconds: float = CONTROL_SECONDS) -> Iterator[None]:
    """Limit the total time of each call that this thread makes within the context."""
    with _paced(_Pace(seconds, SLOW_SECONDS, SLOW_BYTES)):
        yield


@contextmanager
def transfer(slow_seconds: float = SLOW_SECONDS, slow_bytes: int = SLOW_BYTES) -> Iterator[None]:
    """Within the context, let this thread's calls continue while bytes flow at the minimum speed."""
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
def certificates(scheme: str = "https") -> ssl.SSLContext:
    """Load the trusted certificate authorities once, and only for TLS: loading takes 20 ms."""
    return httpx2.create_ssl_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def open_client(base_url: str, headers: Mapping[str, str], silent: float, *, stay: bool = False) -> httpx2.Client:
    """Return a `bounded` client. Its short calls may be silent for `silent` seconds, at most QUIET_SECONDS."""
    client = httpx2.Client(
        base_url=base_url,
        headers={"User-Agent": f"orch/{__version__}", **headers},
        timeout=timeouts(min(silent, QUIET_SECONDS)),
        follow_redirects=True,
        verify=certificates(),
    )
    return bounded(client, stay=stay)


def bearer_client(base_url: str, key: str, silent: float) -> httpx2.Client:
    """Return an `open_client` that sends the key as a bearer token."""
    return open_client(base_url, {"Authorization": f"Bearer {key}"}, silent)


def bounded(client: httpx2.Client, *, stay: bool = False) -> httpx2.Client:
    """Make a client obey `control` and `transfer`. Only its GET calls follow redirects.

    With `stay`, redirects must keep scheme, host and port, because a custom header with the key would go along.
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
    """Return timeouts for calls that may be silent for `silent` seconds."""
    return httpx2.Timeout(silent, connect=min(silent, CONNECT_SECONDS))


class _Network(httpcore2.NetworkBackend):
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
        if (pace := _current.pace) is None:
            return self._plain.read(max_bytes, timeout)
        with pace.wait(timeout) as longest:
            data = self._plain.read(max_bytes, longest)
        pace.came(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        with nullcontext(timeout) if (pace := _current.pace) is None else pace.wait(timeout) as longest:
            self._plain.write(buffer, longest)

    def close(self) -> None:
        self._plain.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._plain.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)
