"""The batch server as a process of its own, for tests that kill it or take its disk away.

    python -m tests.support.batchserver FOLDER UPSTREAM [--fsize BYTES] [--webhook URL]

serves FOLDER on its socket until its stdin ends, and writes {"socket": ...} to stdout once it listens.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import resource
import select
import signal
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.server.in_process import ServerThread, socket_path
from orchestrator.server.settings import Settings
from tests.support.forking import Forked, fork
from tests.support.process import PATIENCE
from tests.support.receiver import SECRET

ROOT = Path(__file__).resolve().parents[2]


class BatchServer:
    """`with BatchServer(folder, upstream.base_url) as server:`; what it holds outlives every kill and restart."""

    def __init__(self, folder: Path, upstream: str, webhook: str | None = None) -> None:
        self.folder = folder
        self.socket = socket_path(folder)
        self._upstream = upstream
        self._webhook = [] if webhook is None else ["--webhook", webhook]
        self._process: Forked | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, fsize: int | None = None) -> None:
        """Start it, with a limit on the size of every file it writes; returns once it listens."""
        assert self._process is None, "the batch server runs already"
        limit = [] if fsize is None else ["--fsize", str(fsize)]
        self._launch(__name__, str(self.folder), self._upstream, *limit, *self._webhook)
        self._wait_for_it()

    def _launch(self, module: str, *arguments: str) -> None:
        given, stdin = os.pipe()
        stdout, told = os.pipe()
        self._stdin, self._stdout = os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb")
        self._process = fork(module, arguments, files=(given, told, 2), env=os.environ, cwd=ROOT)
        os.close(given)
        os.close(told)

    def _wait_for_it(self) -> None:
        ready, _, _ = select.select([self._stdout], [], [], PATIENCE)
        if not ready or not self._stdout.readline():
            # What each of its threads does is then on stderr.
            status = self._end(None if ready else signal.SIGABRT)
            raise RuntimeError(f"the batch server did not start: {'it ended with' if ready else 'it hung;'} {status}")
        self._bytes_at_start = self._bytes("VmRSS")

    @property
    def pid(self) -> int:
        assert self._process is not None, "the batch server is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def grown_bytes(self) -> int:
        """The most memory that it held at once beyond what it held when it began to listen."""
        return self._bytes("VmHWM") - self._bytes_at_start

    def _bytes(self, figure: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text(encoding="ascii")
        return int(status.split(f"{figure}:")[1].split()[0]) * 1024

    def limit_files(self, size: int) -> None:
        """From now on no file can grow above `size` bytes: what a full disk does to a writer. -1 lifts it."""
        assert self._process is not None
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def kill(self) -> None:
        """SIGKILL; harmless when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Let it end by itself; its exit status."""
        return self._end(None)

    def _end(self, blow: signal.Signals | None) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if blow is not None:
            process.send_signal(blow)
        self._stdin.close()
        try:
            return process.wait(PATIENCE)
        finally:
            process.kill()
            self._stdout.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.support.batchserver")
    parser.add_argument("folder", type=Path)
    parser.add_argument("upstream")
    parser.add_argument("--fsize", type=int)
    parser.add_argument("--webhook", help="a receiver's URL; its secret is the receiver's in tests.support.receiver")
    given = parser.parse_args()
    faulthandler.enable()
    # Without this a write above the limit ends the process instead of failing.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if given.fsize is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given.fsize, resource.RLIM_INFINITY))
    settings = Settings(
        upstreams=(given.upstream,),
        retry_delay=0.02,
        request_timeout=5.0,
        max_concurrency=32,  # so that some rows are done before the last one is out
        webhook_url=given.webhook,
        webhook_secret=SECRET,
    )
    with ServerThread(given.folder, settings) as server:
        sys.stdout.write(json.dumps({"socket": str(server.socket)}) + "\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
