"""Consistent images of SQLite databases at one moment, while other connections write to them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from orchestrator.core.errors import StorageError

LARGEST_IN_MEMORY = 32 * 1024 * 1024
"""Maximum bytes of a database that is copied in memory. A larger database is copied to disk."""


class WatchedDatabase:
    """A database that other connections write to. Any thread may use it. Methods raise StorageError if a read
    fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _read_errors(path):
            self._inode = path.stat().st_ino
            # Two connections, because a connection inside a read transaction sees no changes.
            self._watch, self._read = _connected(path), _connected(path)

    def close(self) -> None:
        self._watch.close()
        self._read.close()

    @property
    def is_there(self) -> bool:
        """True if the database's path still leads to the opened file."""
        with suppress(FileNotFoundError):
            return self._path.stat().st_ino == self._inode
        return False

    def version(self) -> int:
        """Return a number that changes whenever another connection commits a change."""
        with _read_errors(self._path):
            return int(self._watch.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold a read transaction during the block, so that `image` shows the database as of the block's start."""
        with _read_errors(self._path):
            self._read.execute("BEGIN")
            try:
                # The transaction starts with the first read of a table.
                self._read.execute("SELECT count(*) FROM sqlite_master").fetchone()
                yield
            finally:
                self._read.rollback()

    def image(self, target: Path) -> bytes | Path:
        """Return the database's bytes. If it exceeds `LARGEST_IN_MEMORY`, copy it to `target` and return `target`."""
        pages, size = (self._number(f"PRAGMA {name}") for name in ("page_count", "page_size"))
        if pages * size <= LARGEST_IN_MEMORY:
            return self._read.serialize()
        target.unlink(missing_ok=True)
        with closing(sqlite3.connect(target)) as copy:
            copy.execute("PRAGMA synchronous=OFF")
            self._read.backup(copy)
        return target

    def _number(self, query: str) -> int:
        return int(self._read.execute(query).fetchone()[0])


@contextmanager
def reading_at_once(first: WatchedDatabase | None, others: Iterable[WatchedDatabase]) -> Iterator[bool]:
    """Freeze the views of all databases. Yield True if no connection wrote to the first database meanwhile."""
    with ExitStack() as stack:
        before = None if first is None else first.version()
        for database in (*([] if first is None else [first]), *others):
            stack.enter_context(database.reading())
        yield first is None or first.version() == before


def has_rows(path: Path, tables: Iterable[str]) -> bool:
    """True if a database exists and one of these tables has a row."""
    if not path.exists():
        return False
    with _read_errors(path), closing(_connected(path)) as database:
        there = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        return any(database.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() for name in tables if name in there)


def _connected(path: Path) -> sqlite3.Connection:
    url = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(url, uri=True, timeout=10, isolation_level=None, check_same_thread=False)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise StorageError(f"the database {path} cannot be read: {error}") from error
