"""What files and batches the server has: a small SQLite database beside its files.

Rows and their results are not here. The result files are the truth about those, and a batch's record only names
them. One process owns a database, so plain short transactions are enough.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from orchestrator.errors import StorageError
from orchestrator.wire import Batch, File

SCHEMA = (
    """
    CREATE TABLE files (
        id TEXT PRIMARY KEY, serial INTEGER NOT NULL, purpose TEXT NOT NULL, path TEXT NOT NULL, object BLOB NOT NULL
    );
    CREATE TABLE batches (
        id TEXT PRIMARY KEY, serial INTEGER NOT NULL, final INTEGER NOT NULL, provenance INTEGER NOT NULL,
        object BLOB NOT NULL
    );
    CREATE INDEX batches_open ON batches (serial) WHERE NOT final;
    """,
)
"""One script a version, oldest first; `PRAGMA user_version` counts those that ran."""


class Records:
    """Files and batches by id. Every method is one durable transaction; sqlite errors become StorageError."""

    def __init__(self, path: Path) -> None:
        with _translated(path):
            self._path = path
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(SCHEMA):
            raise StorageError(f"{self._path} was written by a newer orch", hint="upgrade orch")
        for number, script in enumerate(SCHEMA[version:], version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version={number}; COMMIT;")

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def add_file(self, file: File, path: str) -> None:
        """Record a file whose content already lies, durable, at `path` (relative to the server's folder)."""
        with _translated(self._path):
            self._db.execute(
                "INSERT OR IGNORE INTO files SELECT ?, coalesce(max(serial), 0) + 1, ?, ?, ? FROM files",
                (file.id, file.purpose, path, msgspec.json.encode(file)),
            )

    def file(self, file_id: str) -> tuple[File, str] | None:
        """The file object and its path, or None."""
        with _translated(self._path):
            row = self._db.execute("SELECT object, path FROM files WHERE id = ?", (file_id,)).fetchone()
        return None if row is None else (msgspec.json.decode(row[0], type=File), row[1])

    def file_paths(self) -> set[str]:
        """The path of every file."""
        with _translated(self._path):
            return {row[0] for row in self._db.execute("SELECT path FROM files")}

    def delete_file(self, file_id: str) -> None:
        """Forget a file."""
        with _translated(self._path):
            self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))

    def files(self, after: str | None, limit: int, *, ascending: bool, purpose: str | None) -> list[File]:
        """Up to `limit` files by age, from the one behind `after` on."""
        with _translated(self._path):
            rows = self._db.execute(
                f"SELECT object FROM files WHERE (? IS NULL OR purpose = ?) {_behind('files', ascending)}",
                (purpose, purpose, after, after, limit),
            ).fetchall()
        return [msgspec.json.decode(row[0], type=File) for row in rows]

    def add_batch(self, batch: Batch, *, provenance: bool) -> None:
        """Record a new batch."""
        with _translated(self._path):
            self._db.execute(
                "INSERT INTO batches SELECT ?, coalesce(max(serial), 0) + 1, 0, ?, ? FROM batches",
                (batch.id, provenance, msgspec.json.encode(batch)),
            )

    def save_batch(self, batch: Batch) -> None:
        """Record a batch's new state."""
        with _translated(self._path):
            self._db.execute(
                "UPDATE batches SET object = ?, final = ? WHERE id = ?",
                (msgspec.json.encode(batch), batch.status.is_final, batch.id),
            )

    def batch(self, batch_id: str) -> Batch | None:
        """The batch, or None."""
        with _translated(self._path):
            row = self._db.execute("SELECT object FROM batches WHERE id = ?", (batch_id,)).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=Batch)

    def batches(self, after: str | None, limit: int) -> list[Batch]:
        """Up to `limit` batches, newest first, from the one behind `after` on."""
        with _translated(self._path):
            rows = self._db.execute(
                f"SELECT object FROM batches WHERE TRUE {_behind('batches', False)}", (after, after, limit)
            ).fetchall()
        return [msgspec.json.decode(row[0], type=Batch) for row in rows]

    def open_batches(self) -> list[tuple[Batch, bool]]:
        """Batches that are not at their end, oldest first, and whether each wants provenance in its results."""
        with _translated(self._path):
            rows = self._db.execute(
                "SELECT object, provenance FROM batches WHERE NOT final ORDER BY serial"
            ).fetchall()
        return [(msgspec.json.decode(row[0], type=Batch), bool(row[1])) for row in rows]


def _behind(table: str, ascending: bool) -> str:
    sign, order = (">", "ASC") if ascending else ("<", "DESC")
    return (
        f"AND (? IS NULL OR serial {sign} (SELECT serial FROM {table} WHERE id = ?)) ORDER BY serial {order} LIMIT ?"
    )


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise StorageError(f"the server's database {path} cannot be used: {error}") from error
