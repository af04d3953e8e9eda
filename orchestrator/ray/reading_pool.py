"""Runs calls on all nodes of a Ray cluster, with results in the caller's order.

This process does not import Ray. A child in the cluster's own Python (reading_child.py) submits the calls.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from msgspec import Struct
from msgspec.structs import astuple

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.pool import BUFFER_BYTES, LOOK_SECONDS, WorkerCall
from orchestrator.core.bounded.process import Trip, Tripped, WorkerLimits
from orchestrator.core.errors import JobFilesError
from orchestrator.core.version import __version__

CHILD = Path(__file__).resolve().parent / "reading_child.py"
END_SECONDS = 10.0
AHEAD = 2
"""Calls in progress per CPU of the cluster. More than one, so that no CPU waits for this process."""
FIRST_CALLS = 16
"""Calls to submit while the cluster has no CPUs yet. Waiting tasks make an autoscaling cluster grow."""
_READ = 1 << 20
# Variables that the child gets. They contain no keys.
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "no_proxy", "NO_PROXY")


class ClusterTask:
    """A submitted call. `ClusterPool.results` yields its values."""

    __slots__ = ("fault", "held", "is_over", "payloads")

    def __init__(self, held: int) -> None:
        self.held = held
        self.payloads: deque[bytes] = deque()
        self.is_over = False
        self.fault: Tripped | None = None


class Cluster(Struct, frozen=True):
    """A Ray cluster. `python` is the interpreter with Ray and orch-batch; `address` is Ray's address, such as `auto`.

    A cluster that is silent for `patience` seconds counts as absent. That is enough for Ray to start even on a busy
    machine.
    """

    python: Path
    address: str
    patience: float = 60.0


class ClusterPool:
    """Runs calls on a cluster. The first call starts the child. Not thread-safe.

    At most `workers` calls are in progress. The default keeps all CPUs of the cluster busy. `check` is called every
    LOOK_SECONDS during a wait for results, and may raise to end the wait. Raises JobFilesError if the cluster is
    unreachable or lost, or has a node without this version of orch-batch.
    """

    def __init__(
        self, cluster: Cluster, workers: int | None, limits: WorkerLimits, check: Callable[[], None] = lambda: None
    ) -> None:
        self._cluster = cluster
        self._workers = workers
        self._limits = limits
        self._check = check
        self._most = workers or FIRST_CALLS
        self._silent_since: float | None = 0.0
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._inbox = bytearray()
        self._under_way: dict[int, ClusterTask] = {}
        self._count = 0
        self._held = 0

    @property
    def most(self) -> int:
        """Maximum number of calls in progress."""
        return self._most

    @property
    def has_room(self) -> bool:
        """True if more calls are needed to keep the cluster busy."""
        return len(self._under_way) < self._most and self._held < BUFFER_BYTES

    def submit(self, call: WorkerCall) -> ClusterTask:
        """Queue a call. It runs as soon as a node has room."""
        request = messages.dumps(tuple(call))
        task = self._under_way[self._count] = ClusterTask(len(request))
        self._held += task.held
        head = json.dumps({"id": self._count, "bytes": len(request)})
        self._count += 1
        stdin = self._started().stdin
        assert stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # reading the output will reveal a dead child
            stdin.write(head.encode() + b"\n" + request)
            stdin.flush()
        return task

    def results(self, task: ClusterTask) -> Iterator[Any]:
        """Yield the values of a call. If the call did not finish, raises Tripped after the last value."""
        while not task.is_over:
            self._pump()
        self._held -= task.held
        task.held = 0
        while task.payloads:
            try:
                value = messages.loads(task.payloads.popleft())
            except ValueError:
                raise Tripped(Trip.CRASH, "garbled") from None
            yield value
        if task.fault is not None:
            raise task.fault

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(OSError):
            child.stdin.close()  # type: ignore[union-attr]
        child.stdout.close()  # type: ignore[union-attr]
        if self._silent_since is not None:
            child.kill()  # the child never connected, so it has no tasks to end
        try:
            child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if self._errors is not None:
            self._errors.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            kept = {
                name: value
                for name, value in os.environ.items()
                if name in _KEPT_VARIABLES or name.startswith("RAY_")
            }
            given = [self._cluster.address, __version__, *map(str, astuple(self._limits))]
            self._silent_since = time.monotonic()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the child)
            try:
                self._child = subprocess.Popen(
                    [self._cluster.python, CHILD, *given],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._errors,
                    env={**kept, "PYTHONSAFEPATH": "1"},
                    start_new_session=True,  # Ctrl-C reaches only this process; the child ends with its stdin
                )
            except OSError as error:
                self._errors.close()
                raise _unusable(f"{self._cluster.python} cannot be started: {error.strerror or error}") from error
        return self._child

    def _pump(self) -> None:
        self._check()
        out = self._started().stdout
        assert out is not None, "it is a pipe"
        poll = select.poll()
        poll.register(out, select.POLLIN)
        if not poll.poll(LOOK_SECONDS * 1000):
            if self._silent_since is not None and time.monotonic() - self._silent_since > self._cluster.patience:
                raise _unusable(f"no cluster answers at {self._cluster.address}")
            return
        data = os.read(out.fileno(), _READ)
        if not data:
            raise self._lost()
        self._inbox += data
        self._silent_since = None
        for head, payload in self._events():
            self._heard(head, payload)

    def _events(self) -> Iterator[tuple[dict[str, Any], bytes]]:
        while (end := self._inbox.find(b"\n")) >= 0:
            try:
                head = json.loads(self._inbox[:end])
                behind = end + 1 + head["bytes"]
            except (ValueError, KeyError, TypeError):
                raise _unusable(
                    f"{self._cluster.python} wrote a line that is not an event: {self._inbox[:200]!r}"
                ) from None
            if len(self._inbox) < behind:
                return
            payload = bytes(memoryview(self._inbox)[end + 1 : behind])
            del self._inbox[:behind]
            yield head, payload

    def _heard(self, head: dict[str, Any], payload: bytes) -> None:
        if head["event"] == "done":
            self._done(self._under_way.pop(head["id"]), head, payload)
        elif head["event"] == "room":
            self._most = self._workers or max(FIRST_CALLS, int(head["cpus"] * AHEAD))
        else:
            raise _unusable(head["problem"])

    def _done(self, task: ClusterTask, head: dict[str, Any], payload: bytes) -> None:
        at = 0
        for size in head["sizes"]:
            task.payloads.append(payload[at : at + size])
            at += size
        self._held += at - task.held
        task.held = at
        if head["trip"]:
            task.fault = Tripped(Trip(head["trip"]), head["detail"][:80])
        task.is_over = True

    def _lost(self) -> JobFilesError:
        assert self._child is not None
        assert self._errors is not None
        code = self._child.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 2000))
        said = self._errors.read().decode(errors="replace").strip().rpartition("\n")[2][-400:]
        return _unusable(f"the process that speaks to it ended with code {code}" + (f": {said}" if said else ""))


def _unusable(why: str) -> JobFilesError:
    return JobFilesError(
        f"documents cannot be read on the Ray cluster: {why}",
        hint='put it right (see `orch help ray`), or set `pool = "local"` under [documents] in orch.toml; then '
        "run the same command again",
    )
