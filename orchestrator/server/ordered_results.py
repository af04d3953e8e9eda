"""Results in the order of the input, through an index of each row's line in the result files.

Result files hold rows in the order in which they ended. The index is a SQLite file in the batch's folder. It reads
the order of the input's custom_ids once. Each call adds the result lines written since the previous call. So paging
through a running or finished batch costs one pass over its files, and memory for one page. If the index is missing,
broken or older than the files, it is rebuilt from them.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.jsonl import single_line
from orchestrator.core.request_lines import lines

INDEX_NAME = "merged.db"
KINDS = ("output", "error")
PAGE_BYTES = 8 * 1024 * 1024
WAIT_SECONDS = 60.0
SCHEMA = """
    CREATE TABLE input (key INTEGER PRIMARY KEY, position INTEGER NOT NULL);
    CREATE TABLE results (
        position INTEGER PRIMARY KEY, kind INTEGER NOT NULL, start INTEGER NOT NULL, length INTEGER NOT NULL
    );
    CREATE TABLE files (kind INTEGER PRIMARY KEY, inode INTEGER NOT NULL, seen INTEGER NOT NULL);
"""
READY = 1
"""`PRAGMA user_version` of an index that has read its input."""


class UnknownRow(Exception):
    """The batch has no row with this custom_id."""


class InputGone(Exception):
    """The order of the rows is unknown: the input was deleted before the first page was read."""


class ResultSource(Struct, frozen=True):
    """A batch's input (None: deleted), the folder of its result files, and their durable bytes.

    Files that `durable` does not list count in full.
    """

    input: Path | None
    folder: Path
    durable: Mapping[str, int]


class ResultPage(Struct, frozen=True):
    """Result lines without newlines, in input order. Pass `position` as `after` to get the next page."""

    lines: list[bytes]
    position: int
    has_more: bool


class _Named(msgspec.Struct, frozen=True):
    custom_id: str


_decode = json_decoder(_Named).decode


def custom_id_of(line: bytes) -> str | None:
    """Return the custom_id of a line of an input or result file; None if disk damage made the line unreadable."""
    try:
        return _decode(line).custom_id
    except JSON_ERRORS:
        return None


class OrderedResults:
    """Reader of result pages of any batch. Reads of the same batch run one page at a time."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def page(self, source: ResultSource, after: str | int | None, limit: int) -> ResultPage:
        """Return the rows after `after`, a custom_id or a page's `position`: at most `limit` rows and PAGE_BYTES.

        Raises UnknownRow, InputGone, OSError or StorageError.
        """
        lock = self._locks.setdefault(source.folder, asyncio.Lock())
        async with lock:
            return await asyncio.to_thread(read_page, source, after, limit)


def read_page(source: ResultSource, after: str | int | None, limit: int) -> ResultPage:
    """Read a page in the caller's thread. See `OrderedResults.page` for the arguments."""
    path = source.folder / INDEX_NAME
    try:
        return _read_page(path, source, after, limit)
    except sqlite3.OperationalError as error:
        raise StorageError(f"the index {path} cannot be used: {error}") from error
    except sqlite3.DatabaseError:
        path.unlink(missing_ok=True)
    try:
        return _read_page(path, source, after, limit)
    except sqlite3.Error as error:
        raise StorageError(f"the index {path} cannot be used: {error}") from error


def _read_page(path: Path, source: ResultSource, after: str | int | None, limit: int) -> ResultPage:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    with closing(sqlite3.connect(path, isolation_level=None, timeout=WAIT_SECONDS)) as db, ExitStack() as opened:
        # A kill still leaves whole transactions; an index that a power cut breaks is detected and rebuilt.
        db.execute("PRAGMA synchronous=OFF")
        db.execute("PRAGMA cache_size=-16384")
        _learn_input(db, source.input)
        files: list[BinaryIO | None] = []
        for number, kind in enumerate(KINDS):
            place = source.folder / f"{kind}.jsonl"
            files.append(opened.enter_context(place.open("rb")) if place.exists() else None)
            _catch_up(db, number, files[number], source.durable.get(kind))
        return _collect(db, files, _position(db, after), limit)


def _learn_input(db: sqlite3.Connection, path: Path | None) -> None:
    if _version(db) == READY:
        return
    if path is None or not path.exists():
        raise InputGone
    with path.open("rb") as file, _transaction(db):
        if _version(db) != READY:
            for statement in SCHEMA.split(";"):
                db.execute(statement)
            named = ((custom_id_of(raw), number) for number, _, raw in lines(file))
            known = ((_key(name), number) for name, number in named if name is not None)
            db.executemany("INSERT OR IGNORE INTO input VALUES (?, ?)", known)
            db.execute(f"PRAGMA user_version={READY}")


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _catch_up(db: sqlite3.Connection, kind: int, file: BinaryIO | None, durable: int | None) -> None:
    if file is None:
        inode, size = 0, 0
    else:
        status = os.fstat(file.fileno())
        inode, size = status.st_ino, status.st_size
    until = size if durable is None else min(size, durable)
    if _is_current(_indexed(db, kind), inode, size, until):
        return
    with _transaction(db):
        seen = _indexed(db, kind)
        if _is_current(seen, inode, size, until):
            return
        if seen[0] != inode or seen[1] > size:
            db.execute("DELETE FROM results WHERE kind = ?", (kind,))
            seen = inode, 0
        if file is not None:
            places = ((kind, start, length, _key(name)) for start, length, name in _rows(file, seen[1], until))
            # One outcome per row: if a file has two lines for a row, the first line counts.
            db.executemany("INSERT OR IGNORE INTO results SELECT position, ?, ?, ? FROM input WHERE key = ?", places)
        db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (kind, inode, max(seen[1], until)))


def _indexed(db: sqlite3.Connection, kind: int) -> tuple[int, int]:
    found = db.execute("SELECT inode, seen FROM files WHERE kind = ?", (kind,)).fetchone()
    return found or (0, 0)


def _is_current(seen: tuple[int, int], inode: int, size: int, until: int) -> bool:
    # A resuming batch counts no byte as durable yet, but bytes that were indexed earlier are durable.
    return seen[0] == inode and until <= seen[1] <= size


def _rows(file: BinaryIO, start: int, until: int) -> Iterator[tuple[int, int, str]]:
    file.seek(start)
    while start < until:
        line = file.readline()
        if not line:
            return
        if (name := custom_id_of(line)) is not None:
            yield start, len(line) - 1, name
        start += len(line)


def _position(db: sqlite3.Connection, after: str | int | None) -> int:
    if not isinstance(after, str):
        return after or 0
    found = db.execute("SELECT position FROM input WHERE key = ?", (_key(after),)).fetchone()
    if found is None:
        raise UnknownRow(after)
    return int(found[0])


def _collect(db: sqlite3.Connection, files: list[BinaryIO | None], position: int, limit: int) -> ResultPage:
    found = db.execute(
        "SELECT position, kind, start, length FROM results WHERE position > ? ORDER BY position LIMIT ?",
        (position, limit + 1),
    ).fetchall()
    page: list[bytes] = []
    room = PAGE_BYTES
    for row, kind, start, length in found[:limit]:
        room -= length
        if page and room < 0:
            break
        file = files[kind]
        assert file is not None
        page.append(single_line(os.pread(file.fileno(), length, start)))
        position = row
    return ResultPage(page, position, len(page) < len(found))


def _key(custom_id: str) -> int:
    """Return a custom_id's 64-bit key in the index. Unlike `request_lines.id_key`, it is the same in every
    process.
    """
    digest = blake2b(custom_id.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


@contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        db.rollback()
        raise
