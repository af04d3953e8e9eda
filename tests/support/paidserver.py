"""The batch server in front of an upstream that bills each request, as a process of its own, for tests that kill it.

    python -m tests.support.paidserver FOLDER UPSTREAM

serves FOLDER on its socket until its stdin ends, and writes {"socket": ...} to stdout once it listens.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from pathlib import Path

from orchestrator.server.host import ServerThread
from orchestrator.server.settings import Settings
from tests.support.batchserver import ROOT, START_SECONDS, BatchServer

MAX_CONCURRENCY = 16


class PaidServer(BatchServer):
    """`with PaidServer(folder, upstream.base_url) as server:`; no more than MAX_CONCURRENCY rows are out at once."""

    def start(self, fsize: int | None = None) -> None:
        """Start it; returns once it listens, with a limit on the size of every file it writes from then on."""
        assert self._process is None, "the batch server runs already"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.paidserver", str(self.folder), self._upstream],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        if fsize is not None:
            self.limit_files(fsize)
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        if not ready or not self._process.stdout.readline():
            self.kill()
            raise RuntimeError("the batch server did not start")


def main() -> None:
    folder, upstream = sys.argv[1:]
    # Without this a write above the limit ends the process instead of failing.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    settings = Settings(
        upstreams=(upstream,), retry_delay=0.02, request_timeout=5.0, max_concurrency=MAX_CONCURRENCY, paid=True
    )
    with ServerThread(Path(folder), settings) as server:
        sys.stdout.write(json.dumps({"socket": str(server.socket)}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
