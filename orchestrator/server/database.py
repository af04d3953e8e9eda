"""The server's own small SQLite database, stored beside its files and used by one process."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orchestrator.core.errors import StorageError

FILE_NAME = "server.db"
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
    """
    ALTER TABLE files ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
    ALTER TABLE files ADD COLUMN expires_at INTEGER;
    ALTER TABLE files ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    UPDATE files SET bytes = json_extract(CAST(object AS TEXT), '$.bytes');
    CREATE INDEX files_of ON files (tenant, serial, bytes);
    CREATE INDEX files_expiring ON files (expires_at) WHERE expires_at IS NOT NULL;
    ALTER TABLE batches ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
    ALTER TABLE batches ADD COLUMN options BLOB NOT NULL DEFAULT '{}';
    UPDATE batches SET options = '{"provenance":true}' WHERE provenance;
    ALTER TABLE batches DROP COLUMN provenance;
    CREATE TABLE deleted_files (id TEXT PRIMARY KEY, tenant TEXT NOT NULL, serial INTEGER NOT NULL);
    CREATE INDEX deleted_files_by_age ON deleted_files (serial);
    CREATE TABLE uploads (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, pending INTEGER NOT NULL, expires_at INTEGER NOT NULL,
        file_seconds INTEGER, object BLOB NOT NULL
    );
    CREATE INDEX uploads_by_end ON uploads (pending, expires_at);
    CREATE TABLE upload_parts (
        id TEXT PRIMARY KEY, upload_id TEXT NOT NULL REFERENCES uploads (id), created_at INTEGER NOT NULL,
        bytes INTEGER NOT NULL, path TEXT NOT NULL
    );
    CREATE INDEX upload_parts_of ON upload_parts (upload_id);
    CREATE TABLE keys (
        id TEXT PRIMARY KEY, tenant TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, hint TEXT NOT NULL,
        created_at INTEGER NOT NULL, revoked_at INTEGER, limits BLOB NOT NULL
    );
    CREATE TABLE deliveries (
        id TEXT PRIMARY KEY, batch_id TEXT NOT NULL, body BLOB NOT NULL, due_at REAL NOT NULL,
        attempts INTEGER NOT NULL, problem TEXT
    );
    CREATE TABLE learned (upstream TEXT PRIMARY KEY, concurrency INTEGER NOT NULL);
    """,
    """
    ALTER TABLE keys ADD COLUMN access TEXT NOT NULL DEFAULT 'batch';
    """,
)
"""Migration scripts, oldest first. `PRAGMA user_version` is the number of scripts that have run."""


class ServerDatabase:
    """One connection. Each call is a durable transaction. SQLite errors are raised as StorageError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translated():
            # Private, as it records which tenant owns which file. SQLite gives its other files the same mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._migrate()

    def _migrate(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version > len(SCHEMA):
            raise StorageError(f"{self.path} was written by a newer orch", hint="upgrade orch")
        for number, script in enumerate(SCHEMA[version:], version + 1):
            self._db.executescript(f"BEGIN IMMEDIATE; {script}; PRAGMA user_version={number}; COMMIT;")

    def close(self) -> None:
        self._db.close()

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """Run one statement that changes data. Return the number of changed rows."""
        with self._translated():
            return self._db.execute(sql, parameters).rowcount

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._translated():
            return self._db.execute(sql, parameters).fetchall()

    def version(self) -> tuple[int, int]:
        """Return a value that changes with every change by any process. Do not call it within a transaction."""
        return self._db.total_changes, self.query("PRAGMA data_version")[0][0]

    def image(self) -> bytes:
        """Return the database as the bytes of a file, with all committed changes."""
        with self._translated():
            return self._db.serialize()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self._db.rollback()
            raise

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StorageError(f"the server's database {self.path} cannot be used: {error}") from error
