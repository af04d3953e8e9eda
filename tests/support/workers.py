"""Tests run by several processes, `-n 6`, that are forked from the one that collected them.

To import and collect the tests takes ten seconds of a core, which each process would take if it was started afresh.
"""

from __future__ import annotations

import atexit
import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, groupby
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.forking import shared_parent

ENGINE, KEPT_WHOLE = "vllm", "together"
"""Marks of tests for which much is made once: one process has all that need the engine, or all of a file."""
FIRST = ("acceptance", "integration")
"""Folders of the tests that take longest: what is short is left for the end."""
ENDED = (EOFError, ConnectionError)
MORE, DONE = "more", "done"


def pytest_addoption(parser: pytest.Parser) -> None:
    # By its public name, pytest keeps short names to itself.
    parser.getgroup("general")._addoption(
        "-n", dest="workers", metavar="N", type=int, default=0, help="Run tests in N processes"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first, and side by side what one process has the whole of."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, bool, bool]:
    whole = _kept_whole(item)
    return whole != ENGINE, not whole, item.path.parent.name not in FIRST


def _kept_whole(item: pytest.Item) -> str:
    """What it is a part of that one process has the whole of; empty if it is none."""
    if item.get_closest_marker(ENGINE) is not None:
        return ENGINE
    return str(item.path) if item.get_closest_marker(KEPT_WHOLE) is not None else ""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    options = session.config.option
    if not options.workers or options.collectonly or session.testsfailed or len(session.items) < 2:
        return None
    with shared_parent():
        _Run(session, min(options.workers, len(session.items))).until_done()
    return True


class _Run:
    """The processes of a run, and what of its tests none of them has yet."""

    def __init__(self, session: pytest.Session, workers: int) -> None:
        self._session = session
        # It is made by whoever asks for it first.
        self._folder = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self._count = workers
        self._parts = deque(self._by_file())
        self._left = sum(map(len, self._parts))
        self._numbers = count()
        self._running: dict[Connection, _Worker] = {}

    def _by_file(self) -> Iterator[list[int]]:
        items = self._session.items
        for _, part in groupby(range(len(items)), key=lambda n: _kept_whole(items[n]) or items[n].path):
            yield list(part)

    def until_done(self) -> None:
        """Raise as pytest's own loop does where the run is to end before its last test."""
        try:
            for _ in range(self._count):
                self._begin_one()
            while self._running:
                for connection in wait(list(self._running)):
                    self._hear(connection)
                if self._session.shouldfail:
                    raise self._session.Failed(self._session.shouldfail)
                if self._session.shouldstop:
                    raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for connection, worker in self._running.items():
                connection.close()
                os.kill(worker.pid, signal.SIGINT)
            for worker in self._running.values():
                os.waitpid(worker.pid, 0)

    def _begin_one(self) -> None:
        ours, theirs = Pipe()
        number = next(self._numbers)
        # A Ctrl-C waits until it is clear which process has it.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        if (pid := os.fork()) == 0:
            try:
                for other in (ours, *self._running):
                    other.close()
                _work(self._session, self._folder / f"worker-{number}", theirs)
            finally:
                os._exit(1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        theirs.close()
        self._running[ours] = _Worker(pid)

    def _hear(self, connection: Connection) -> None:
        """Take one message of a process: MORE, DONE, the number of a test that begins, or a report."""
        worker = self._running[connection]
        try:
            told = connection.recv()
            if told == MORE:
                part = self._next_part()
                worker.given.extend(part)
                connection.send(part)
            elif told == DONE:
                worker.is_done = True
            elif isinstance(told, int):
                worker.at = worker.given.popleft()
            else:
                self._report(told)
        except ENDED:
            self._ended(connection)

    def _report(self, told: dict[str, Any]) -> None:
        config = self._session.config
        report = config.hook.pytest_report_from_serializable(config=config, data=told)
        config.hook.pytest_runtest_logreport(report=report)

    def _next_part(self) -> list[int]:
        """A file's tests; fewer of them near the end of the run, so that all processes end at once."""
        if not self._parts:
            return []
        part = self._parts.popleft()
        most = max(1, self._left // (3 * self._count))
        if len(part) > most and not _kept_whole(self._session.items[part[0]]):
            self._parts.appendleft(part[most:])
            part = part[:most]
        self._left -= len(part)
        return part

    def _ended(self, connection: Connection) -> None:
        """Let another process go on for one that died."""
        worker = self._running.pop(connection)
        connection.close()
        _, status = os.waitpid(worker.pid, 0)
        if worker.is_done:
            return
        item = self._session.items[worker.at]
        died = f"its process ended, exit status {os.waitstatus_to_exitcode(status)}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", died, "call")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.given:
            self._parts.appendleft(list(worker.given))
            self._left += len(worker.given)
        self._begin_one()


class _Worker:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.given: deque[int] = deque()
        """What it has not begun."""
        self.at = 0
        self.is_done = False


def _work(session: pytest.Session, folder: Path, connection: Connection) -> NoReturn:
    """Be the process: run what is given, until nothing is."""
    config = session.config
    # What is to be undone at the end of the process that collected is not this one's to undo.
    atexit._clear()
    capture = config.pluginmanager.getplugin("capturemanager")
    # The files that it writes to would be those of the other processes, too.
    capture.stop_global_capturing()
    capture.start_global_capturing()
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_Told(connection, config))
    with suppress(KeyboardInterrupt, *ENDED):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        _run(session, connection)
    # Whoever has asked it to end may do so again.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    session._setupstate.teardown_exact(None)  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    os._exit(0)


def _run(session: pytest.Session, connection: Connection) -> None:
    given = deque(_asked(connection))
    while given:
        number = given.popleft()
        connection.send(number)
        if not given:
            # Asked before the last one runs: pytest keeps what the next one needs, too.
            given.extend(_asked(connection))
        following = session.items[given[0]] if given else None
        session.config.hook.pytest_runtest_protocol(item=session.items[number], nextitem=following)
    connection.send(DONE)


def _asked(connection: Connection) -> list[int]:
    connection.send(MORE)
    given: list[int] = connection.recv()
    return given


class _Told:
    """Sends each report to the process that collected."""

    def __init__(self, connection: Connection, config: pytest.Config) -> None:
        self._connection = connection
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        told = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send(told)
