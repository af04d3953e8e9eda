"""Processes of this project's programs, forked from one that has imported them: a start costs no second of a core.

Each is a process of its own, in a session of its own, with its own arguments, environment, folder and files. What a
start of the interpreter itself takes or leaves is seen by the tests that ask for a fresh one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.sparing import spare_the_disk

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 150_000
"""Of a request: arguments and environment."""
PRELOADED = "LD_PRELOAD"
SHARED = "PYTEST_FORKS_FROM"
HUGE, MADV_COLLAPSE = 2 << 20, 25
"""Bytes of a huge page, and Linux's number of the advice that makes one; Python has no name for it."""
_NUMBER = struct.Struct("i")
_ends: list[Callable[[], None]] = []
"""Each ends a process that this one forks from."""


class Forked:
    """As a `subprocess.Popen` that was started without pipes."""

    def __init__(self, args: Sequence[str], told: socket.socket) -> None:
        self.args = list(args)
        self.returncode: int | None = None
        self._told = told
        self.pid = self._number()

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._told], [], [], 0)[0]:
            self._ended()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there is one; TimeoutExpired after so many seconds."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self._ended()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self) -> None:
        self.returncode = self._number()
        self._told.close()

    def _number(self) -> int:
        number: int = _NUMBER.unpack(self._told.recv(_NUMBER.size))[0]
        return number


def fork(
    module: str,
    arguments: Sequence[str],
    *,
    files: tuple[int, int, int],
    env: Mapping[str, str],
    cwd: Path,
    alone: bool = False,
) -> Forked:
    """Run `main()` of a module in a process of its own, with these files as stdin, stdout and stderr.

    `alone`: forked from a process that has imported this module, and nothing of the package. A library that `env` has
    loaded before it (LD_PRELOAD) is loaded before the process that it is forked from, which forces its writes.
    """
    ours, theirs = socket.socketpair()
    request = json.dumps({"module": module, "arguments": arguments, "env": dict(env), "cwd": str(cwd)}).encode()
    assert len(request) <= MOST_BYTES
    with theirs:
        parent = _parent(module if alone else "", env.get(PRELOADED, ""))
        socket.send_fds(parent, [request], [*files, theirs.fileno()])
    return Forked([module, *arguments], ours)


@cache
def _parent(module: str, library: str) -> socket.socket:
    """The process that forks them, one for each pytest process; it ends with it."""
    if not module and not library and (path := os.environ.get(SHARED)):
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.connect(path)
        atexit.register(ours.close)
        return ours
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    number = str(theirs.fileno())
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking", number, module],
            cwd=ROOT,
            env={**os.environ, PRELOADED: library} if library else None,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        process.wait()

    _ends.append(end)
    atexit.register(end)
    return ours


def end_parents() -> None:
    """End those that this process forks from, so that what it forks has its own."""
    while _ends:
        end = _ends.pop()
        atexit.unregister(end)
        end()
    _parent.cache_clear()


@contextmanager
def shared_parent() -> Iterator[None]:
    """Let pytest processes that are started in this block fork from one that imports everything for all of them.

    That takes five seconds of a core.
    """
    with tempfile.TemporaryDirectory(prefix="orch-forks-") as folder:
        path = str(Path(folder) / "parent")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen()
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forking", str(listener.fileno()), SHARED],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        os.environ[SHARED] = path
        try:
            yield
        finally:
            del os.environ[SHARED]
            process.communicate()


USED_BY_MOST = ("jsonschema", "openai", "orchestrator", "tests.support.batchserver", "uvicorn")
"""Other than ours, what most of them would import where they first need it."""


def _import_all() -> None:
    for top in USED_BY_MOST:
        importlib.import_module(top)
    for found in pkgutil.walk_packages(sys.modules["orchestrator"].__path__, "orchestrator."):
        # Those of vLLM are programs, some of them of the engine's own environment; migrations run where imported.
        if not re.search(r"\.(vllm|migrations|__main__)\b", found.name):
            # What is missing is said by the command that needs it.
            with suppress(ImportError):
                importlib.import_module(found.name)
    # The vocabulary of tokens is read at its first use, which takes longer than many a command.
    importlib.import_module("orchestrator.core.tokens").count_plain(["a"])


def _prepare(module: str, *, is_warm: bool = False) -> None:
    """Import what is forked: a module, or everything, and live through a small job where many will."""
    if PRELOADED not in os.environ:
        spare_the_disk()
    if module:
        importlib.import_module(module)
    else:
        _import_all()
    if is_warm:
        importlib.import_module("tests.support.warm").live_through_a_job()
    # A collection in a child would copy every page there is.
    gc.freeze()
    _join_pages()


def _join_pages() -> None:
    """Put the memory of this process into huge pages, where the kernel does that.

    A fork copies an entry for each page, and the end of a process removes them: for 45,000 of them that takes four
    times as long as a small command.
    """
    library = ctypes.CDLL(None)
    library.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        span, rights, _, _, inode, *_ = line.split()
        if rights == "rw-p" and inode == "0":
            start, end = (int(each, 16) for each in span.split("-"))
            for at in range(-(-start // HUGE) * HUGE, end - HUGE + 1, HUGE):
                # What cannot be joined stays as it is.
                library.madvise(at, HUGE, MADV_COLLAPSE)


def _serve_each(listener: socket.socket) -> None:
    """Fork a process that serves for each connection, until whoever started this one is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    is_prepared = False
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        requests, _ = listener.accept()
        if not is_prepared:
            _prepare("", is_warm=True)
            is_prepared = True
        with requests:
            if os.fork() == 0:
                os.setsid()
                listener.close()
                _serve(requests)
                return


def _serve(requests: socket.socket) -> None:
    """Fork for each request until the other side is gone and all have ended; in one that was asked for, run it."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    told: dict[int, int] = {}
    heard = [woken, requests]
    while told or requests in heard:
        ready, _, _ = select.select(heard, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ends(told)
        if requests not in ready:
            continue
        request, files, _, _ = socket.recv_fds(requests, MOST_BYTES, 4)
        if not request:
            heard.remove(requests)
            continue
        if (child := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            for other in (woken, wake, *told.values()):
                os.close(other)
            _become(json.loads(request), files)
            return
        told[child] = files.pop()
        for file in files:
            os.close(file)


def _tell_ends(told: dict[int, int]) -> None:
    """Say how those ended that have: `told` is where, by process."""
    while told and (ended := os.waitpid(-1, os.WNOHANG))[0]:
        child, status = ended
        with suppress(BrokenPipeError):
            os.write(told[child], _NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os.close(told.pop(child))


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Be the process that is asked for, and run its program; it ends as a program does, by SystemExit or an error."""
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, file in enumerate(files[:3]):
        os.dup2(file, number)
        os.close(file)
    os.write(files[3], _NUMBER.pack(os.getpid()))
    os.close(files[3])
    sys.argv = [request["module"], *request["arguments"]]
    try:
        importlib.import_module(request["module"]).main()
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        _end(ended.code or 0)
    _end(0)


def _end(status: int) -> None:
    """End as the interpreter does, but without unloading every module, which takes longer than many a command."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter's end does
    atexit._run_exitfuncs()
    # What cannot be written is the interpreter's to tell.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status & 0xFF)
    raise SystemExit(status)


if __name__ == "__main__":
    connected = socket.socket(fileno=int(sys.argv[1]))
    if sys.argv[2] == SHARED:
        _serve_each(connected)
    else:
        _prepare(sys.argv[2])
        _serve(connected)
