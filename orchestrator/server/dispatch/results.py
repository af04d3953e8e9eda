"""Append-only result files: rows become durable in groups, and what a kill tore is cut at the next start.

One writer thread serves every batch: it takes what has gathered, writes it, calls `fdatasync` once per file, and
only then reports the rows as done. So at a kill only rows that nobody was told about are lost.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from orchestrator.wire import ResultLine, lines

MAX_WAITING_BYTES = 8 * 1024 * 1024
GROUP_SECONDS = 0.02
RETRY_SECONDS = 1.0

_decode = msgspec.json.Decoder(ResultLine).decode


class ResultFile:
    """One append-only file. Only the writer thread touches it after `open`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self.durable = os.fstat(self._fd).st_size
        os.lseek(self._fd, self.durable, os.SEEK_SET)

    def append(self, data: bytes) -> None:
        """Write and sync, or leave the file as it was. Raises OSError (disk full, file-size limit)."""
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            # Half a group on disk would be a torn line in the middle of the file once there is room again.
            os.ftruncate(self._fd, self.durable)
            os.lseek(self._fd, self.durable, os.SEEK_SET)
            raise
        self.durable += len(data)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class _Pending:
    file: ResultFile
    line: bytes
    done: Callable[[], None]


class Writer:
    """The writer thread. `problem` is what keeps it from writing now, or None.

    `notify` runs callbacks on the caller's side (an event loop's `call_soon_threadsafe`).
    """

    def __init__(self, notify: Callable[[Callable[[], None]], object]) -> None:
        self._notify = notify
        self._queue: deque[_Pending] = deque()
        self._bytes = 0
        self._wake = threading.Condition()
        self._closing = False
        self.problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="result-writer", daemon=True)
        self._thread.start()

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be written that no more should be made."""
        return self._bytes > MAX_WAITING_BYTES or self.problem is not None

    def put(self, file: ResultFile, line: bytes, done: Callable[[], None]) -> None:
        """Queue one line (without newline); `done` is called through `notify` once it is durable."""
        with self._wake:
            self._queue.append(_Pending(file, line, done))
            self._bytes += len(line) + 1
            self._wake.notify()

    def close(self) -> None:
        """Write what is queued, unless the disk refuses, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while group := self._take():
            while not self._write(group):
                with self._wake:
                    if self._closing:
                        return
                    self._wake.wait(RETRY_SECONDS)

    def _take(self) -> list[_Pending]:
        with self._wake:
            while not self._queue:
                if self._closing:
                    return []
                self._wake.wait()
            if not self._closing:
                # Rows that end within one window share a sync; the wait ends early only to close.
                self._wake.wait_for(lambda: self._closing, GROUP_SECONDS)
            group = list(self._queue)
            self._queue.clear()
            return group

    def _write(self, group: list[_Pending]) -> bool:
        """Write a group, removing from it what became durable; False when the disk refused some of it."""
        by_file: dict[ResultFile, list[_Pending]] = {}
        for pending in group:
            by_file.setdefault(pending.file, []).append(pending)
        group.clear()
        self.problem, problem = None, None
        for file, rows in by_file.items():
            written, error = _append(file, rows)
            if error is not None:
                problem = f"cannot write {file.path}: {error.strerror}"
                group.extend(rows[written:])
            with self._wake:
                self._bytes -= sum(len(row.line) + 1 for row in rows[:written])
            self._notify(_all(rows[:written]))
        self.problem = problem
        return problem is None


def _append(file: ResultFile, rows: list[_Pending]) -> tuple[int, OSError | None]:
    """Write rows all at once, or as many as the disk still takes; how many are durable, and what stopped the rest."""
    try:
        file.append(b"".join(part for row in rows for part in (row.line, b"\n")))
    except OSError as error:
        if len(rows) == 1:
            return 0, error
    else:
        return len(rows), None
    for number, row in enumerate(rows):
        try:
            file.append(row.line + b"\n")
        except OSError as error:
            return number, error
    return len(rows), None


def _all(rows: list[_Pending]) -> Callable[[], None]:
    def done() -> None:
        for row in rows:
            row.done()

    return done


def recover(path: Path) -> Iterator[ResultLine]:
    """Each row of a result file, after cutting what a kill left behind: half a line, or one that is no JSON.

    A file that is not there has no rows. Raises OSError.
    """
    if not path.exists():
        return
    cut_torn_tail(path)
    broken = False
    with path.open("rb") as file:
        for _, _, raw in lines(file):
            row = _parse(raw)
            if row is None:
                broken = True
            else:
                yield row
    if broken:
        _drop_broken_lines(path)


def is_expired(row: ResultLine) -> bool:
    """Whether a row was given up because its batch's window had passed."""
    return isinstance(row.error, dict) and row.error.get("code") == "batch_expired"


def cut_torn_tail(path: Path) -> None:
    """Cut the bytes behind the last newline: a line is durable with its newline or not at all."""
    with path.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        end = size
        while end > 0:
            start = max(0, end - 65_536)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            file.truncate(end)
            os.fsync(file.fileno())


def _drop_broken_lines(path: Path) -> None:
    fresh = path.with_suffix(".mended")
    with path.open("rb") as source, fresh.open("wb") as target:
        for _, _, raw in lines(source):
            if _parse(raw) is not None:
                target.write(raw + b"\n")
        target.flush()
        os.fsync(target.fileno())
    fresh.replace(path)


def _parse(raw: bytes) -> ResultLine | None:
    try:
        row = _decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return row if row.custom_id is not None else None
