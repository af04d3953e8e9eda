"""The parent's side of one worker process: its start, its messages and its end."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from orchestrator.core.bounded.messages import FULL, HEAD, OUT_OF_MEMORY, MessageKind

if TYPE_CHECKING:
    from orchestrator.core.bounded.pool import WorkerTask

KILL_SECONDS = 5.0
START_SECONDS = 60.0
"""Minimum seconds that a process gets to become ready, even if `patience` is shorter: a busy machine starts it
slowly.
"""
_READ = 1 << 20
_KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ")
# The package is found by path; no user folder is searched for modules. `-I` also makes Python ignore environment
# variables, and `-S` skips the scan of all installed packages.
_PROGRAM = "import sys; sys.path += sys.argv[1:-1]; from orchestrator.core.bounded.confined_child import main; main()"


class WorkerLimits(Struct, frozen=True):
    """Memory, time and size limits of a worker.

    `memory` limits private memory, in bytes. A function may raise it to `more_memory` (`memory.ask_for_more`).
    `seconds` limits the CPU time until a function's next value or its end. `patience` limits the wall-clock time
    until then, in seconds, for functions that wait. `value` limits the size of one value, in bytes.
    """

    memory: int = 1_000_000_000
    seconds: int = 120
    patience: float = 600.0
    value: int = 500_000_000
    more_memory: int = 0


class Trip(StrEnum):
    """A reason why a function did not finish."""

    TIME = "time_limit"  # the function exceeded its CPU time, or was silent for too long
    MEMORY = "memory_limit"  # the function exceeded its memory
    CRASH = "reader_crashed"  # the function, or a library that it uses, failed
    VALUE = "value_limit"  # the function yielded a value that is too large


class Tripped(Exception):
    """The function did not finish. `detail` names the signal or the error's type, and may be empty."""

    def __init__(self, trip: Trip, detail: str = "") -> None:
        super().__init__(f"{trip}: {detail}" if detail else trip.value)
        self.trip = trip
        self.detail = detail


def verdict(status: int, peak: int, limits: WorkerLimits) -> Tripped:
    """Return why a worker died during a task. `status` is as in `subprocess`; `peak` is the peak memory in bytes.

    SIGKILL counts as out of memory: the kernel sends it when the machine's memory is exhausted.
    """
    if status in (-signal.SIGPROF, -signal.SIGXCPU):
        return Tripped(Trip.TIME)
    if status in (OUT_OF_MEMORY, -signal.SIGKILL) or peak >= FULL * limits.memory:
        return Tripped(Trip.MEMORY)
    if status < 0:
        with suppress(ValueError):
            return Tripped(Trip.CRASH, signal.Signals(-status).name)
    return Tripped(Trip.CRASH, f"exit code {status}")


class Worker:
    """A worker process and its tasks. The first of `tasks` is running, the rest are queued.

    Raises OSError if no process can be started.
    """

    def __init__(self, limits: WorkerLimits) -> None:
        self._limits = limits
        self.tasks: deque[WorkerTask] = deque()
        self.is_ready = False
        self.done = 0
        """Number of tasks that have ended."""
        self.faults = 0
        """Page faults of the worker up to the end of its last task."""
        self._is_garbled = False
        self.heard_at = time.monotonic()
        self._inbox = bytearray()
        self._outbox = bytearray()
        # The kernel never reports a child's peak as less than its parent's.
        self._least_peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = _start(theirs.fileno(), limits)
            except OSError:
                self._socket.close()
                raise
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Return the socket's descriptor, for poll()."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """True if data is still to be sent."""
        return bool(self._outbox)

    def give(self, task: WorkerTask, request: bytes) -> None:
        """Queue a task and send as much as possible. `request` is its call, encoded as a message."""
        if not self.tasks:
            self.heard_at = time.monotonic()
        self.tasks.append(task)
        self._outbox += request
        self.send()

    def send(self) -> None:
        """Send as much as the worker accepts now."""
        # If the worker is dead, the next read notices.
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while self._outbox:
                del self._outbox[: self._socket.send(self._outbox)]

    def received(self) -> Iterator[tuple[MessageKind, bytes]]:
        """Yield the messages that have arrived. Raises EOFError after the last one if the worker is gone."""
        is_gone = False
        try:
            data = self._socket.recv(_READ)
            is_gone = not data
        except BlockingIOError:
            data = b""
        except ConnectionResetError:
            data, is_gone = b"", True
        self.heard_at = time.monotonic()
        self._inbox += data
        at, end = 0, len(self._inbox)
        while end - at >= HEAD.size:
            kind, size = HEAD.unpack_from(self._inbox, at)
            if size > self._limits.value + HEAD.size:
                raise self.garbled()
            if end - at < HEAD.size + size:
                break
            start = at + HEAD.size
            at = start + size
            yield self._kind(kind), bytes(memoryview(self._inbox)[start:at])
        del self._inbox[:at]
        if is_gone:
            raise EOFError

    def _kind(self, number: int) -> MessageKind:
        try:
            return MessageKind(number)
        except ValueError:
            raise self.garbled() from None

    def garbled(self) -> EOFError:
        """Mark the worker as garbled and return the error to raise. A malicious document may control the worker."""
        self._is_garbled = True
        return EOFError()

    def is_silent(self, now: float) -> bool:
        """True if the worker has a task but has sent nothing for longer than its limit."""
        patience = self._limits.patience if self.is_ready else max(self._limits.patience, START_SECONDS)
        return bool(self.tasks) and now - self.heard_at > patience

    def leave(self) -> None:
        """Close this process's socket to a worker that belongs to the process from which this one was forked."""
        self._socket.close()
        self._process.returncode = 0  # not a child of this process: there is nothing to collect

    def end(self) -> Tripped:
        """End the process and return why it ended."""
        is_silent = self.is_silent(time.monotonic())
        os.kill(self._process.pid, signal.SIGKILL)  # not Popen.kill(), which collects a process that has ended
        self._socket.close()
        if is_silent:
            # The process may be stuck in the kernel, in a file system that does not respond: then it ends later.
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(KILL_SECONDS)
            return Tripped(Trip.TIME)
        try:
            _, status, usage = os.wait4(self._process.pid, 0)
        except ChildProcessError:  # another thread collected it
            return Tripped(Trip.CRASH)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._is_garbled:
            return Tripped(Trip.CRASH, "garbled")
        if usage.ru_maxrss > self._least_peak:
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        else:  # the peak is the parent's; page faults since the last task show the child's memory
            peak = (usage.ru_minflt - self.faults) * resource.getpagesize()
        return verdict(self._process.returncode, peak, self._limits)


def _start(fd: int, limits: WorkerLimits) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).parents[3])
    given = [f"{fd},{os.getpid()},{limits.memory},{limits.more_memory},{limits.seconds},{limits.value}"]
    keys = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", "-c", _PROGRAM, root, *filter(None, sys.path), *given],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=keys,  # no API key in the process that parses untrusted bytes
        pass_fds=[fd],
        process_group=0,  # Ctrl-C in a terminal is for the parent alone
    )
