"""The server in the main thread, on TCP, a Unix socket or both, until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import importlib
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import IO, Any

import uvicorn

from orchestrator.core import interrupts
from orchestrator.core.errors import BackendError, OrchError, StorageError, UsageError
from orchestrator.core.guarded_server import Server
from orchestrator.core.replica.takeover import Replica
from orchestrator.core.replica.who_is_active import Superseded
from orchestrator.server.app import configuration
from orchestrator.server.memory_limits import return_large_bodies
from orchestrator.server.open_files import allow_many_files, fitted
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings

LOCK = "lock"
BACKLOG = 2048
STOP_CONNECTIONS_SECONDS = 5
# Longer than clients keep idle connections: closing one just as a request arrives would fail that request.
KEEP_ALIVE_SECONDS = 120
INTERRUPTED = 130
# A tenth of Python's default interval: a thread that checks large rows delays every step of all other threads.
SWITCH_SECONDS = 0.0005


class Stop:
    """Handles SIGTERM, SIGINT and SIGHUP inside `on_signals`. `asked` is True from the first signal on.

    A second SIGINT ends the process at once. Durable results stay; all other rows run again.
    """

    def __init__(self) -> None:
        self.asked = False

    def on_signals(self) -> AbstractContextManager[None]:
        """Handle the signals inside this context. Main thread only."""
        return interrupts.handled(self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            os._exit(INTERRUPTED)
        self.asked = True


@contextmanager
def only_server(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises UsageError, with the other server's pid, if it is taken, or StorageError."""
    with _lock_file(folder, LOCK) as lock:
        if not _locked(lock):
            pid = (folder / LOCK).read_text(errors="replace").strip()
            raise UsageError(
                f"{folder} is in use by another `orch serve` (process {pid or 'unknown'})",
                hint="stop that one, or name another folder with --dir",
            )
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            yield
        finally:
            lock.truncate(0)


@contextmanager
def outlived(folder: Path, name: str, pause: Callable[[], bool]) -> Iterator[int]:
    """Hold the folder's lock `name`, once processes of a killed server have released it.

    Yields the lock's descriptor. A process that inherits it holds the lock until it ends. Between attempts, `pause`
    waits for a moment. Raises BackendError if `pause` returns False.
    """
    with _lock_file(folder, name) as lock:
        while not _locked(lock):
            if not pause():
                raise BackendError(
                    f"processes of the server that ran before in {folder} have not ended", hint="wait, or end them"
                )
        yield lock.fileno()


def _lock_file(folder: Path, name: str) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return (folder / name).open("a")
    except OSError as error:
        raise StorageError(f"{folder} cannot be used: {error.strerror}", hint="name another with --dir") from error


def _locked(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """True if `host` is reachable from this machine only. Raises UsageError for a name that does not resolve."""
    return all(address.startswith("127.") or address == "::1" for _, address in _addresses(host, 0))


def _addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: {getattr(error, 'strerror', None) or error}") from error
    return [(family, str(address[0])) for family, _, _, _, address in found]


def bind_tcp(host: str, port: int) -> socket.socket:
    """Return a bound socket (port 0: any free port) that does not listen yet. Raises BackendError or UsageError."""
    family, address = _addresses(host, port)[0]
    if port:
        # Two sockets that do not listen may share a port; listening reveals a conflict.
        with _bound(family, address, port) as probe:
            _listening(probe, f"{host}:{port}")
    return _bound(family, address, port)


def _bound(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Without this, on some event loops each answer waits 40 ms for the client's acknowledgement.
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        bound.bind((address, port))
    except OSError as error:
        bound.close()
        raise _not_available(f"{address}:{port}", error) from error
    return bound


def _listening(bound: socket.socket, where: str) -> None:
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise _not_available(where, error) from error


def _not_available(where: str, error: OSError) -> BackendError:
    if error.errno == errno.EADDRINUSE:
        return BackendError(f"{where} is in use by another program", hint="choose another --port; 0 takes a free one")
    return BackendError(f"cannot listen at {where}: {error.strerror}")


def bind_unix(path: Path) -> socket.socket:
    """Return a Unix socket that only this user may open. Replaces a killed server's socket. Raises BackendError."""
    try:
        if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
            raise BackendError(f"{path} already exists and is not a socket", hint="choose another --uds")
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise BackendError(f"{path} is in use by another program", hint="choose another --uds")
        path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            bound.bind(str(path))
        finally:
            os.umask(before)
    except OSError as error:
        raise BackendError(f"cannot listen at {path}: {error.strerror or error}") from error
    return bound


Greeting = Callable[[], Coroutine[Any, Any, None]]


class _Uvicorn(Server):
    """uvicorn server that ends when `is_over`, greets once it listens, and leaves signals to `Stop`."""

    def __init__(
        self, config: uvicorn.Config, service: Service, is_over: Callable[[], bool], greet: Greeting
    ) -> None:
        super().__init__(config, service.connections)
        self._ending = service.ending
        self._is_over = is_over
        self._greet = greet

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Errors of a start are raised from here; uvicorn would also log them with a traceback.
        for bound in sockets or ():
            _listening(bound, str(bound.getsockname()))
        logger = logging.getLogger("uvicorn.error")
        logger.disabled = True
        try:
            await super().startup(sockets)
        finally:
            logger.disabled = False
        self._greeting = asyncio.create_task(self._greet())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._greeting.cancel()
        await asyncio.gather(self._greeting, return_exceptions=True)
        self._ending.set()
        await super().shutdown(sockets)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._is_over()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def serve(
    root: Path,
    settings: Settings,
    sockets: Sequence[socket.socket],
    *,
    is_over: Callable[[], bool],
    greet: Callable[[Service], Coroutine[Any, Any, None]],
    replica: Replica | None = None,
) -> None:
    """Serve the folder `root` on these sockets until `is_over`. `greet` runs once the server listens.

    Returns when everything is closed and durable. Raises the service's start errors (StorageError, BackendError), or
    Superseded if another server has taken over the replica.
    """
    importlib.import_module("aiohttp")  # else the first request that is passed through would wait for it
    return_large_bodies()
    sys.setswitchinterval(SWITCH_SECONDS)
    service = Service(root, fitted(settings, allow_many_files()), replica)

    def superseded() -> Superseded | None:
        return None if service.replicator is None else service.replicator.superseded

    config = configuration(
        service,
        lifespan="on",
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_CONNECTIONS_SECONDS,
    )
    server = _Uvicorn(config, service, lambda: is_over() or superseded() is not None, lambda: greet(service))
    try:
        server.run(sockets=list(sockets))
    except SystemExit as error:
        failure = service.failure
        if isinstance(failure, OrchError):
            raise failure from error
        raise BackendError(f"the server did not start: {failure or 'see its log'}") from error
    if (end := superseded()) is not None:
        raise end
