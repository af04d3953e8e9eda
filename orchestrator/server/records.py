"""What files and batches the server has, and whose they are.

Rows and their results are not here. The result files are the truth about those, and a batch's record only names
them. A tenant is who an API key belongs to; where no keys are asked for, everything is the tenant's "".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from orchestrator.core.wire import JSON_ERRORS, Batch, File
from orchestrator.server.database import ServerDatabase

log = logging.getLogger(__name__)

DELETED_REMEMBERED = 100_000
EVERY_FILE = "(SELECT id, tenant, serial FROM files UNION ALL SELECT id, tenant, serial FROM deleted_files)"


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a create call asks for beyond OpenAI's fields."""

    provenance: bool = False
    max_rows: int | None = None
    """What the key it was made with allows."""
    in_order: bool = False
    """Rows go out in the order of the file, not by shared prefix."""
    output_seconds: int | None = None
    """How long the result files are kept, from their creation on."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file, its path under the server's folder, and its tenant."""

    file: File
    path: str
    tenant: str


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch as recorded last, what it asked for, and its tenant."""

    batch: Batch
    options: BatchOptions
    tenant: str


_file = msgspec.json.Decoder(File).decode
_batch = msgspec.json.Decoder(Batch).decode
_options = msgspec.json.Decoder(BatchOptions).decode
_encode = msgspec.json.encode


class Records:
    """Files and batches by id. Where a tenant is given, another's are not there. Raises StorageError."""

    def __init__(self, database: ServerDatabase, at_end: Callable[[Batch], None] | None = None) -> None:
        """`at_end` is called with a batch at its end, inside the transaction that records it."""
        self._db = database
        self._at_end = at_end

    def add_file(self, file: File, path: str, tenant: str) -> None:
        """Record a file whose content already lies, durable, at `path` (relative to the server's folder)."""
        self._db.execute(
            "INSERT OR IGNORE INTO files (id, serial, purpose, path, object, tenant, expires_at, bytes)"
            " SELECT ?, coalesce(max(serial), 0) + 1, ?, ?, ?, ?, ?, ? FROM files",
            (file.id, file.purpose, path, _encode(file), tenant, file.expires_at, file.bytes),
        )

    def file(self, file_id: str, tenant: str | None = None) -> FileRecord | None:
        """The file, or None."""
        rows = self._db.query("SELECT object, path, tenant FROM files WHERE id = ?", (file_id,))
        found = [FileRecord(_file(row[0]), row[1], row[2]) for row in rows if tenant in (None, row[2])]
        return found[0] if found else None

    def stored_bytes(self, tenant: str) -> int:
        """How many bytes a tenant's files have, and the parts of its uploads that are not yet files."""
        ((files, parts),) = self._db.query(
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE tenant = ?),"
            " (SELECT coalesce(sum(p.bytes), 0) FROM upload_parts p JOIN uploads u ON u.id = p.upload_id"
            " WHERE u.tenant = ?)",
            (tenant, tenant),
        )
        return int(files + parts)

    def file_sizes(self) -> dict[str, int]:
        """The path of every file under the server's folder, and its bytes."""
        return dict(self._db.query("SELECT path, bytes FROM files"))

    def expired_files(self, now: int, limit: int = 100) -> list[FileRecord]:
        """Files whose time is over, longest ago first."""
        rows = self._db.query(
            "SELECT object, path, tenant FROM files WHERE expires_at <= ? ORDER BY expires_at LIMIT ?", (now, limit)
        )
        return [FileRecord(_file(row[0]), row[1], row[2]) for row in rows]

    def delete_file(self, file_id: str) -> None:
        """Forget a file but for its place in lists: who pages through them may delete as he goes."""
        with self._db.transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO deleted_files SELECT id, tenant, serial FROM files WHERE id = ?", (file_id,)
            )
            self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))
            self._db.execute(
                "DELETE FROM deleted_files WHERE serial < (SELECT max(serial) FROM deleted_files) - ?",
                (DELETED_REMEMBERED,),
            )

    def knows_file(self, file_id: str, tenant: str) -> bool:
        """Whether the tenant has or had the file."""
        return bool(self._db.query(f"SELECT 1 FROM {EVERY_FILE} WHERE id = ? AND tenant = ?", (file_id, tenant)))

    def files(
        self, tenant: str, after: str | None, limit: int, *, ascending: bool, purpose: str | None, now: int
    ) -> list[File]:
        """Up to `limit` files by age that have not expired at `now`, from the one behind `after` on."""
        rows = self._db.query(
            "SELECT object FROM files WHERE tenant = ? AND (? IS NULL OR purpose = ?)"
            f" AND (expires_at IS NULL OR expires_at > ?) {_behind(EVERY_FILE, ascending)}",
            (tenant, purpose, purpose, now, after, after, tenant, limit),
        )
        return [_file(row[0]) for row in rows]

    def add_batch(self, record: BatchRecord) -> None:
        """Record a new batch."""
        self._db.execute(
            "INSERT INTO batches (id, serial, final, object, tenant, options)"
            " SELECT ?, coalesce(max(serial), 0) + 1, 0, ?, ?, ? FROM batches",
            (record.batch.id, _encode(record.batch), record.tenant, _encode(record.options)),
        )

    def save_batch(self, batch: Batch) -> None:
        """Record a batch's new state."""
        with self._db.transaction():
            self._db.execute(
                "UPDATE batches SET object = ?, final = ? WHERE id = ?",
                (_encode(batch), batch.status.is_final, batch.id),
            )
            if batch.status.is_final and self._at_end is not None:
                self._at_end(batch)

    def batch(self, batch_id: str, tenant: str | None = None) -> BatchRecord | None:
        """The batch, or None."""
        rows = self._db.query("SELECT object, options, tenant FROM batches WHERE id = ?", (batch_id,))
        found = [_record(row) for row in rows if tenant in (None, row[2])]
        return found[0] if found else None

    def batches(self, tenant: str, after: str | None, limit: int) -> list[Batch]:
        """Up to `limit` batches, newest first, from the one behind `after` on."""
        rows = self._db.query(
            f"SELECT object FROM batches WHERE tenant = ? {_behind('batches', False)}",
            (tenant, after, after, tenant, limit),
        )
        return [_batch(row[0]) for row in rows]

    def open_batches(self) -> list[BatchRecord]:
        """Batches that are not at their end, oldest first."""
        rows = self._db.query("SELECT object, options, tenant, id FROM batches WHERE NOT final ORDER BY serial")
        found = []
        for *row, batch_id in rows:
            try:
                found.append(_record(tuple(row)))
            except JSON_ERRORS:
                # The others go on: what a damaged disk made of one is not a reason not to start.
                log.exception("the record of batch %s cannot be read", batch_id)
        return found

    def learned_concurrency(self) -> dict[str, int]:
        """The concurrency that each upstream was found to take, by its URL."""
        return dict(self._db.query("SELECT upstream, concurrency FROM learned"))

    def learn_concurrency(self, upstream: str, concurrency: int) -> None:
        """Remember an upstream's concurrency for the next start."""
        self._db.execute("INSERT OR REPLACE INTO learned VALUES (?, ?)", (upstream, concurrency))


def _record(row: tuple[Any, ...]) -> BatchRecord:
    return BatchRecord(_batch(row[0]), _options(row[1]), row[2])


def _behind(table: str, ascending: bool) -> str:
    sign, order = (">", "ASC") if ascending else ("<", "DESC")
    return (
        f"AND (? IS NULL OR serial {sign} (SELECT serial FROM {table} WHERE id = ? AND tenant = ?))"
        f" ORDER BY serial {order} LIMIT ?"
    )
