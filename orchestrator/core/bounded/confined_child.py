"""The program of a worker process, which runs its parent's calls in turn and returns their values.

The process limits itself through the kernel, so its limits also bind C libraries. It dies with its parent, has almost
no environment variables, and cannot write files.
"""

from __future__ import annotations

import errno
import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

from orchestrator.core.bounded import messages
from orchestrator.core.bounded.messages import FULL, HEAD, OUT_OF_MEMORY, MessageKind, packed
from orchestrator.core.ends_with_parent import end_with

FLUSH_BYTES = 64 * 1024
FLUSH_SECONDS = 0.25
_READ = 1 << 16


def main() -> None:
    """Serve calls until the parent closes the connection.

    The last argument holds the socket's descriptor, the parent's process id and the limits.
    """
    fd, parent, memory, more_memory, seconds, value = map(int, sys.argv.pop().split(","))
    sys.argv = sys.argv[:1]
    end_with(parent)
    _confine(memory, max(memory, more_memory))
    channel = ParentSocket(fd, seconds, value)
    channel.send(MessageKind.READY)
    with suppress(BrokenPipeError, ConnectionResetError):
        while (request := channel.request()) is not None:
            try:
                serve(channel, *messages.loads(request))
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
    os._exit(0)


def _confine(memory: int, more_memory: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the timer's signal ends the process
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, 0)
    # Linux counts private memory only: reserved address space and mapped files are free.
    _lower(resource.RLIMIT_DATA, memory, more_memory)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 (pathlib is not loaded)
        file.write("1000")  # if the machine runs out of memory, the kernel kills this process first


def _lower(what: int, limit: int, most: int | None = None) -> None:
    with suppress(ValueError, OSError):  # a limit that is already lower stays
        _, hard = resource.getrlimit(what)
        if most is not None:
            hard = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


class ParentSocket:
    """The socket to the parent. Values are sent in groups, after FLUSH_BYTES or after FLUSH_SECONDS of CPU time."""

    def __init__(self, fd: int, seconds: int, most: int) -> None:
        """Allow `seconds` of CPU time between values and `most` bytes per value."""
        self._fd = fd
        self._seconds = seconds
        self._most = most
        self._inbox = bytearray()
        self._outbox: list[bytes] = []
        self._size = 0
        self._sent_at = 0.0

    def request(self) -> bytes | None:
        """Return the next call, or None once the parent has closed the connection."""
        while True:
            if len(self._inbox) >= HEAD.size:
                _, size = HEAD.unpack_from(self._inbox)
                if len(self._inbox) >= HEAD.size + size:
                    found = bytes(self._inbox[HEAD.size : HEAD.size + size])
                    del self._inbox[: HEAD.size + size]
                    return found
            data = os.read(self._fd, _READ)
            if not data:
                return None
            self._inbox += data

    def begin(self) -> None:
        """Start the time limit of a function."""
        self._sent_at = time.process_time()
        # Not RLIMIT_CPU, which counts whole seconds from the start of the process, in kernel ticks.
        signal.setitimer(signal.ITIMER_PROF, self._seconds)

    def value(self, value: object) -> bool:
        """Queue a value. None only shows the parent that the function is alive. Return False if the value is too
        large.
        """
        if value is not None:
            payload = messages.dumps(value)
            if len(payload) > self._most:
                return False
            self._outbox.append(packed(MessageKind.VALUE, payload))
            self._size += len(payload)
        is_late = time.process_time() - self._sent_at > FLUSH_SECONDS
        if is_late and not self._outbox:
            self._outbox.append(packed(MessageKind.ALIVE))
        if is_late or self._size > FLUSH_BYTES:
            self.flush()
            self.begin()
        return True

    def send(self, kind: MessageKind, payload: bytes = b"") -> None:
        """Send the queued messages, then this message."""
        self._outbox.append(packed(kind, payload))
        self.flush()

    def flush(self) -> None:
        """Send all queued messages."""
        data = memoryview(b"".join(self._outbox))
        self._outbox.clear()
        self._size = 0
        while data:
            data = data[os.write(self._fd, data) :]


def serve(channel: ParentSocket, function: str, arguments: tuple[Any, ...]) -> None:
    """Run a function and report how it ended. Raises MemoryError if the function raises it."""
    began = time.process_time()
    channel.begin()
    end, said = MessageKind.END, b""
    try:
        for value in _resolved(function)(*arguments):
            if not channel.value(value):
                end = MessageKind.TOO_LARGE
                break
    except MemoryError:
        channel.flush()
        raise
    except BaseException as error:  # noqa: BLE001 (the parent reports it for this call; Rust panics too)
        if _is_of_memory(error):
            channel.flush()
            raise MemoryError from None
        end, said = MessageKind.FAULT, type(error).__name__.encode()
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    channel.send(end, said or f"{time.process_time() - began!r} {faults}".encode())


def _is_of_memory(error: BaseException) -> bool:
    """True if a function failed for lack of memory, which C libraries report in several ways."""
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return limit != resource.RLIM_INFINITY and _peak() >= FULL * limit


def _peak() -> int:
    """Return this process's peak memory in bytes; 0 if the system does not report it.

    getrusage is unsuitable, because it never reports less than the parent's own peak.
    """
    with suppress(OSError), open("/proc/self/status", "rb") as file:  # noqa: PTH123 (pathlib is not loaded)
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


@cache
def _resolved(function: str) -> Callable[..., Iterator[Any]]:
    module, _, name = function.partition(":")
    found: Callable[..., Iterator[Any]] = getattr(importlib.import_module(module), name)
    return found
