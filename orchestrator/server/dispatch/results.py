"""Append-only result files: rows become durable in groups, and the next start removes lines that a kill left
incomplete.

One writer serves every batch. It takes the lines queued so far, writes them in a thread and calls `fdatasync` once
per file. Only then does it report the rows as done. So a kill loses only rows that were not yet reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path
from typing import Any

from orchestrator.server.memory_limits import RoomShare

MAX_WAITING_BYTES = 8 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
"""Approximate bytes of the pieces into which lines are joined. A longer line is written by itself."""
GROUP_SECONDS = 0.02
RETRY_SECONDS = 1.0
_placed_bytes = attrgetter("placed_bytes")


class LongLine:
    """A line without newline, in pieces. The pieces are written separately, because joining them would copy a long
    body.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces
        self._size = sum(map(len, pieces))

    def __len__(self) -> int:
        return self._size


Line = bytes | LongLine
"""A line of a result file, without newline."""


class ResultFile:
    """One append-only file. `report` gets the notes of rows that have become durable, on the event loop.

    Until then, `lines` and `notes` hold each row's line and note. Both belong to the event loop. Only `append` runs
    in the writer's thread.
    """

    def __init__(self, path: Path, report: Callable[[list[Any]], None]) -> None:
        self.path = path
        self.report = report
        self.lines: list[Line] = []
        self.notes: list[Any] = []
        self.places: list[RoomShare] = []
        """The room shares of the waiting lines."""
        self.placed_bytes = 0
        """Bytes of the waiting lines that have a room share."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        self.durable = os.fstat(self._fd).st_size
        os.lseek(self._fd, self.durable, os.SEEK_SET)
        self._is_torn = False

    def append(self, *pieces: bytes) -> None:
        """Append and sync the pieces, or leave the file as it was. Raises OSError, for example if the disk is
        full.
        """
        if self._is_torn:
            self._mend()
        try:
            for piece in pieces:
                view = memoryview(piece)
                while view:
                    view = view[os.write(self._fd, view) :]
            os.fdatasync(self._fd)
        except OSError:
            self._is_torn = True
            self._mend()
            raise
        self.durable += sum(map(len, pieces))

    def _mend(self) -> None:
        # Half a group on disk would leave a torn line in the middle of the file once the disk has room again. An
        # unsynced whole group would be written twice.
        os.ftruncate(self._fd, self.durable)
        os.lseek(self._fd, self.durable, os.SEEK_SET)
        self._is_torn = False

    def close(self) -> None:
        os.close(self._fd)


class Writer:
    """Makes result lines durable in groups. `problem` is the reason why it cannot write now, or None.

    Only the file writes run in a thread. Everything else runs on the event loop that created the writer.
    """

    def __init__(self) -> None:
        self.on_room: Callable[[], None] = lambda: None
        """Called when the writer is no longer full."""
        self._waiting: dict[ResultFile, None] = {}
        self.waiting_bytes = 0
        self._placed_bytes = 0
        self.problem: str | None = None
        self.is_full = False
        """True if no more results should be produced until some are written.

        Lines with a room share do not count. Their room already limits them, and they must not delay other tenants.
        """
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="result-writer")
        self.task = asyncio.create_task(self._run())

    def put(self, file: ResultFile, line: Line, note: object, place: RoomShare | None = None) -> None:
        """Queue one line (without newline). `file.report` gets `note` once the line is durable.

        `place` is the line's room share until the line is durable.
        """
        if place is not None:
            place.is_handed_on = True
            file.places.append(place)
            file.placed_bytes += len(line) + 1
            self._placed_bytes += len(line) + 1
        if not file.lines:
            self._waiting[file] = None
            self._wake.set()
        file.lines.append(line)
        file.notes.append(note)
        self.waiting_bytes += len(line) + 1
        if self.waiting_bytes - self._placed_bytes > MAX_WAITING_BYTES:
            self.is_full = True

    async def close(self) -> None:
        """Write the queued lines, then end. Lines that the disk refuses are not written."""
        self._closing.set()
        self._wake.set()
        await asyncio.gather(self.task, return_exceptions=True)
        self._thread.shutdown()

    async def _run(self) -> None:
        while not (self._closing.is_set() and (not self._waiting or self.problem)):
            await self._wake.wait()
            self._wake.clear()
            # Rows that end within one window share a sync; the wait ends early only to close.
            await self._pause(RETRY_SECONDS if self.problem else GROUP_SECONDS)
            problem = None
            # Short lines first: another tenant's long ones take longer to write.
            for file in sorted(self._waiting, key=_placed_bytes):
                problem = await self._write(file) or problem
            self.problem = problem
            if self._waiting:
                self._wake.set()
            was_full = self.is_full
            self.is_full = problem is not None or self.waiting_bytes - self._placed_bytes > MAX_WAITING_BYTES
            if was_full and not self.is_full:
                self.on_room()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _write(self, file: ResultFile) -> str | None:
        """Write a file's waiting lines. Return why some could not be written, or None."""
        del self._waiting[file]
        lines, notes = file.lines, file.notes
        places, file.places = file.places, []
        placed_bytes, file.placed_bytes = file.placed_bytes, 0
        file.lines, file.notes = [], []
        loop = asyncio.get_running_loop()
        written, error = await loop.run_in_executor(self._thread, _append, file, lines)
        self.waiting_bytes -= sum(map(len, lines[:written])) + written
        if error is None:
            self._placed_bytes -= placed_bytes
            file.report(notes)
            del lines
            for place in places:
                place.give_back()
            return None
        file.places = places + file.places
        file.placed_bytes += placed_bytes
        file.lines = lines[written:] + file.lines
        file.notes, notes = notes[written:] + file.notes, notes[:written]
        self._waiting[file] = None
        file.report(notes)
        return f"cannot write {file.path}: {error.strerror}"


def _pieces(lines: list[Line]) -> list[bytes]:
    """Join short lines, because many small writes cost more than copies."""
    pieces: list[bytes] = []
    short: list[bytes] = []
    size = 0
    for line in lines:
        if isinstance(line, LongLine) or len(line) > PIECE_BYTES:
            pieces += b"\n".join([*short, b""]), *_parts(line)
            short, size = [b""], 0
            continue
        short.append(line)
        size += len(line)
        if size > PIECE_BYTES:
            pieces.append(b"\n".join([*short, b""]))
            short, size = [], 0
    return [*pieces, b"\n".join([*short, b""])]


def _parts(line: Line) -> tuple[bytes, ...]:
    return line.pieces if isinstance(line, LongLine) else (line,)


def _append(file: ResultFile, lines: list[Line]) -> tuple[int, OSError | None]:
    """Write lines together, or as many as the disk accepts. Return how many lines are durable, and the error if
    any.
    """
    try:
        file.append(*_pieces(lines))
    except OSError as error:
        if len(lines) == 1:
            return 0, error
    else:
        return len(lines), None
    for number, line in enumerate(lines):
        try:
            file.append(*_parts(line), b"\n")
        except OSError as error:
            return number, error
    return len(lines), None
