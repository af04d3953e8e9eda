"""Functions that a worker process runs in tests of the limits."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator.core.bounded import memory

_done: list[object] = []


def echo(*values: object) -> Iterator[object]:
    _done.extend(values)
    yield from values


def count(number: int, size: int = 0) -> Iterator[object]:
    for i in range(number):
        yield (i, "x" * size)


def environment() -> Iterator[object]:
    yield dict(os.environ)
    yield os.getpid()
    yield sorted({str(fd.readlink()).partition(":")[0] for fd in _open_files()})


def _open_files() -> list[Path]:
    return [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]


def fail_if_worn() -> Iterator[object]:
    """Fail in a process that has done something before."""
    if _done:
        raise RuntimeError
    yield "fresh"


def panic() -> Iterator[object]:
    """Fail as a library in Rust does, with an error that is no Exception."""
    raise BaseException
    yield


def hog_and_tell_otherwise(size: int) -> Iterator[object]:
    """Take most of the memory, and then fail in words of its own."""
    taken = bytearray(b"x") * size
    raise ValueError(len(taken))
    yield


def take_more(size: int) -> Iterator[object]:
    memory.ask_for_more()
    yield len(bytearray(b"x") * size)


def spin() -> Iterator[object]:
    while True:
        pass
    yield


def announced_spin(folder: str) -> Iterator[object]:
    """Spin, and leave a folder of the process's number: workers may write no files."""
    (Path(folder) / str(os.getpid())).mkdir()
    yield from spin()


def spin_in_c() -> Iterator[object]:
    yield pow(3, 1 << 40)


def sleep(seconds: float) -> Iterator[object]:
    time.sleep(seconds)
    yield "slept"


def hog(size: int) -> Iterator[object]:
    yield len(bytearray(size))


def crash(signal_number: int) -> Iterator[object]:
    os.kill(os.getpid(), signal_number)
    yield


def segfault() -> Iterator[object]:
    ctypes.string_at(0)
    yield


def leave(code: int) -> Iterator[object]:
    os._exit(code)
    yield


def fail() -> Iterator[object]:
    yield "one"
    raise LookupError("no such thing")


def crash_after(values: int) -> Iterator[object]:
    for i in range(values):
        yield (i, "x" * 70_000)
    os.kill(os.getpid(), signal.SIGABRT)


def fill(size: int) -> Iterator[object]:
    """Touch so many bytes, and give them back."""
    yield len(bytes(bytearray(size)))


def crash_once(mark: str) -> Iterator[object]:
    path = Path(mark)
    if not path.exists():
        # Workers may write nothing, but a folder is not a file.
        path.mkdir()
        os.kill(os.getpid(), signal.SIGKILL)
    yield "second time"


def slowly(values: int, seconds: float) -> Iterator[object]:
    """Each value takes CPU time."""
    for i in range(values):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        yield i


def nothing_for_long(rounds: int, seconds: float) -> Iterator[object]:
    for _ in range(rounds):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        yield None
    yield "done"


def write(path: str) -> Iterator[object]:
    try:
        Path(path).write_bytes(b"x" * 10)
    except OSError as error:
        yield error.strerror


def odd() -> Iterator[object]:
    """Values that are not plain."""
    yield [Path("/a"), len, {"k": {1}}, b"x", 1 << 100, 1.5, None, True]


def say(message: bytes) -> Iterator[object]:
    """Say something to the parent that no worker says."""
    (channel,) = (int(fd.name) for fd in _open_files() if str(fd.readlink()).startswith("socket:"))
    os.write(channel, message)
    time.sleep(60)
    yield
