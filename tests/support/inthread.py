"""A server of the standard library in a thread of the test."""

from __future__ import annotations

import socketserver
import threading
from types import TracebackType


class InThread:
    """What a test talks to; `serve` begins, and the end of the block ends it."""

    def serve(self, server: socketserver.BaseServer) -> None:
        """Serve in a thread."""
        self._server = server
        self._over = threading.Event()
        """Set at the end: what holds back an answer lets go."""
        self._thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
