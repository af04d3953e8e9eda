"""The server in a thread of this process: real HTTP on a Unix socket, streamed in both directions."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from socket import socket

import uvicorn

from orchestrator.core.batch_api import Batch
from orchestrator.core.errors import BackendError, OrchError
from orchestrator.core.guarded_server import Server
from orchestrator.server.app import configuration
from orchestrator.server.engine_control import SteeredServer
from orchestrator.server.memory_limits import return_large_bodies
from orchestrator.server.open_files import allow_many_files, fitted
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings

MAX_SOCKET_PATH = 100
START_SECONDS = 60.0


def socket_path(root: Path) -> Path:
    """Return the socket's path: inside the server's folder, or in the temporary folder if that path is too long.

    The kernel allows 108 bytes for a Unix socket's path.
    """
    inside = root / "server.sock"
    if len(str(inside).encode()) <= MAX_SOCKET_PATH:
        return inside
    short = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"orch-{short}" / "server.sock"


class _Uvicorn(Server):
    """uvicorn server that reports when it listens or fails to start. At shutdown, it tells the service first."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config, service.connections)
        self._service = service
        self.settled = threading.Event()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        self._service.ending.set()
        await super().shutdown(sockets)


class ServerThread(SteeredServer):
    """`with ServerThread(root, settings) as server:` serves on `server.socket` until the context ends."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        may_send: Callable[[], bool] | None = None,
        resumes: Callable[[Batch], bool] = lambda batch: True,
    ) -> None:
        """`may_send` returns True while rows may be sent. `resumes` chooses the unfinished batches that continue."""
        self.root = root
        self.socket = socket_path(root)
        return_large_bodies()
        service = Service(root, fitted(settings, allow_many_files()), may_send=may_send, resumes=resumes)
        super().__init__(service, lambda: self._server.loop)
        self._failure: BaseException | None = None

    def __enter__(self) -> ServerThread:
        self.socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.socket.parent.stat().st_uid != os.getuid():
            # Everyone can write to the temporary folder: a folder made there by another user is not safe for a
            # socket.
            raise BackendError(
                f"{self.socket.parent} belongs to another user", hint="set ORCH_HOME to a shorter path"
            )
        self.socket.unlink(missing_ok=True)
        config = configuration(self._service, uds=str(self.socket), timeout_graceful_shutdown=5)
        self._server = _Uvicorn(config, self._service)
        self._thread = threading.Thread(target=self._serve, name="batch-server", daemon=True)
        self._thread.start()
        self._server.settled.wait(START_SECONDS)
        if not self._server.started:
            self.__exit__(None, None, None)
            failure = self._service.failure or self._failure
            raise (
                failure
                if isinstance(failure, OrchError)
                else BackendError(f"the batch server did not start: {failure}")
            )
        self.socket.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self._service.patience = None
        self._server.leave()
        self._thread.join()
        self.socket.unlink(missing_ok=True)

    def end(self, seconds: float) -> None:
        """Stop serving once the rows in flight are back, or after `seconds`.

        The wait also ends if another thread leaves the context.
        """
        self._service.patience = seconds
        self._server.leave()
        self._thread.join()
        self.socket.unlink(missing_ok=True)

    def _serve(self) -> None:
        try:
            self._server.run()
        except BaseException as error:  # noqa: BLE001  (a thread's end is reported where it was started)
            self._failure = error
        finally:
            self._server.settled.set()
