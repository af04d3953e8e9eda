"""The batch server in front of an upstream that bills each request, as a process of its own, for tests that kill it.

    python -m tests.support.paidserver FOLDER UPSTREAM REQUEST_TIMEOUT

serves FOLDER on its socket until its stdin ends, and writes {"socket": ...} to stdout once it listens.
"""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from tests.support.batchserver import BatchServer

MAX_CONCURRENCY = 16


class PaidServer(BatchServer):
    """`with PaidServer(folder, upstream.base_url) as server:`; no more than MAX_CONCURRENCY rows are out at once.

    What is not answered within `request_timeout` seconds is given up, and other rows go out.
    """

    def __init__(self, folder: Path, upstream: str, request_timeout: float = 5.0) -> None:
        super().__init__(folder, upstream)
        self._request_timeout = request_timeout

    def start(self, fsize: int | None = None) -> None:
        """Start it; returns once it listens, with a limit on the size of every file it writes from then on."""
        assert self._process is None, "the batch server runs already"
        self._launch(__name__, str(self.folder), self._upstream, str(self._request_timeout))
        if fsize is not None:
            self.limit_files(fsize)
        self._wait_for_it()


def main() -> None:
    folder, upstream, request_timeout = sys.argv[1:]
    # Without this a write above the limit ends the process instead of failing.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    settings = Settings(
        upstreams=(upstream,),
        retry_delay=0.02,
        request_timeout=float(request_timeout),
        max_concurrency=MAX_CONCURRENCY,
        paid=True,
    )
    with ServerThread(Path(folder), settings) as server:
        sys.stdout.write(json.dumps({"socket": str(server.socket)}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
