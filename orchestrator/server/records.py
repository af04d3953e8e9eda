"""Records of the server's files and batches, and their tenants.

Rows and results are in the result files; a batch's record only names these files. A tenant is the owner of an API
key. Without keys, everything belongs to the tenant "".
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS, Batch, File
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.database import ServerDatabase

log = logging.getLogger(__name__)

DELETED_REMEMBERED = 100_000
EVERY_FILE = "(SELECT id, tenant, serial FROM files UNION ALL SELECT id, tenant, serial FROM deleted_files)"


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a call that creates a batch, beyond OpenAI's fields."""

    provenance: bool = False
    max_rows: int | None = None
    """Maximum number of rows in the batch, from the key that created it."""
    in_order: bool = False
    """True to send rows in the order of the file instead of grouped by shared prefix."""
    output_seconds: int | None = None
    """Seconds to keep the result files after their creation."""


class FileRecord(Struct, frozen=True):
    """A file, its path under the server's folder, and its tenant."""

    file: File
    path: str
    tenant: str


class BatchRecord(Struct, frozen=True):
    """A batch as last recorded, its options, and its tenant."""

    batch: Batch
    options: BatchOptions
    tenant: str


_file = json_decoder(File).decode
_batch = json_decoder(Batch).decode
_options = json_decoder(BatchOptions).decode
_encode = msgspec.json.encode


class Records:
    """Files and batches by id. A call that names a tenant finds only that tenant's records. Raises StorageError."""

    def __init__(self, database: ServerDatabase, at_end: Callable[[Batch], None] | None = None) -> None:
        """`at_end` is called with a batch that ended, inside the transaction that records its end."""
        self._db = database
        self._at_end = at_end

    def add_file(self, file: File, path: str, tenant: str) -> None:
        """Record a file whose content is already durable at `path` (relative to the server's folder)."""
        self._db.execute(
            "INSERT OR IGNORE INTO files (id, serial, purpose, path, object, tenant, expires_at, bytes)"
            " SELECT ?, coalesce(max(serial), 0) + 1, ?, ?, ?, ?, ?, ? FROM files",
            (file.id, file.purpose, path, _encode(file), tenant, file.expires_at, file.bytes),
        )

    def file(self, file_id: str, tenant: str | None = None) -> FileRecord | None:
        rows = self._db.query("SELECT object, path, tenant FROM files WHERE id = ?", (file_id,))
        found = [FileRecord(_file(row[0]), row[1], row[2]) for row in rows if tenant in (None, row[2])]
        return found[0] if found else None

    def stored_bytes(self, tenant: str) -> int:
        """Return the bytes of a tenant's files, and of the parts of its unfinished uploads."""
        ((files, parts),) = self._db.query(
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM files WHERE tenant = ?),"
            " (SELECT coalesce(sum(p.bytes), 0) FROM upload_parts p JOIN uploads u ON u.id = p.upload_id"
            " WHERE u.tenant = ?)",
            (tenant, tenant),
        )
        return int(files + parts)

    def file_sizes(self) -> dict[str, int]:
        """Return the bytes of every file, by its path under the server's folder."""
        return dict(self._db.query("SELECT path, bytes FROM files"))

    def expired_files(self, now: int, limit: int = 100) -> list[FileRecord]:
        """Return files that have expired at `now`, earliest first."""
        rows = self._db.query(
            "SELECT object, path, tenant FROM files WHERE expires_at <= ? ORDER BY expires_at LIMIT ?", (now, limit)
        )
        return [FileRecord(_file(row[0]), row[1], row[2]) for row in rows]

    def delete_file(self, file_id: str) -> None:
        """Delete a file's record but keep its position in lists, so that a client can delete while paging."""
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
        """True if the tenant has, or had, the file."""
        return bool(self._db.query(f"SELECT 1 FROM {EVERY_FILE} WHERE id = ? AND tenant = ?", (file_id, tenant)))

    def files(
        self, tenant: str, after: str | None, limit: int, *, ascending: bool, purpose: str | None, now: int
    ) -> list[File]:
        """Return up to `limit` files not expired at `now`, sorted by age, starting after the file `after`."""
        rows = self._db.query(
            "SELECT object FROM files WHERE tenant = ? AND (? IS NULL OR purpose = ?)"
            f" AND (expires_at IS NULL OR expires_at > ?) {_behind(EVERY_FILE, ascending)}",
            (tenant, purpose, purpose, now, after, after, tenant, limit),
        )
        return [_file(row[0]) for row in rows]

    def add_batch(self, record: BatchRecord) -> None:
        self._db.execute(
            "INSERT INTO batches (id, serial, final, object, tenant, options)"
            " SELECT ?, coalesce(max(serial), 0) + 1, 0, ?, ?, ? FROM batches",
            (record.batch.id, _encode(record.batch), record.tenant, _encode(record.options)),
        )

    def save_batch(self, batch: Batch) -> None:
        with self._db.transaction():
            self._db.execute(
                "UPDATE batches SET object = ?, final = ? WHERE id = ?",
                (_encode(batch), batch.status.is_final, batch.id),
            )
            if batch.status.is_final and self._at_end is not None:
                self._at_end(batch)

    def batch(self, batch_id: str, tenant: str | None = None) -> BatchRecord | None:
        rows = self._db.query("SELECT object, options, tenant FROM batches WHERE id = ?", (batch_id,))
        found = [_record(row) for row in rows if tenant in (None, row[2])]
        return found[0] if found else None

    def batches(self, tenant: str, after: str | None, limit: int) -> list[Batch]:
        """Return up to `limit` batches, newest first, starting after the batch `after`."""
        rows = self._db.query(
            f"SELECT object FROM batches WHERE tenant = ? {_behind('batches', False)}",
            (tenant, after, after, tenant, limit),
        )
        return [_batch(row[0]) for row in rows]

    def open_batches(self) -> list[BatchRecord]:
        rows = self._db.query("SELECT object, options, tenant, id FROM batches WHERE NOT final ORDER BY serial")
        found = []
        for *row, batch_id in rows:
            try:
                found.append(_record(tuple(row)))
            except JSON_ERRORS:
                # A record that a damaged disk broke must not keep the server from starting.
                log.exception("the record of batch %s cannot be read", batch_id)
        return found

    def learned_concurrency(self) -> dict[str, int]:
        """Return the learned concurrency of each upstream, by URL."""
        return dict(self._db.query("SELECT upstream, concurrency FROM learned"))

    def learn_concurrency(self, upstream: str, concurrency: int) -> None:
        """Store an upstream's concurrency for the next start."""
        self._db.execute("INSERT OR REPLACE INTO learned VALUES (?, ?)", (upstream, concurrency))


def _record(row: tuple[Any, ...]) -> BatchRecord:
    return BatchRecord(_batch(row[0]), _options(row[1]), row[2])


def _behind(table: str, ascending: bool) -> str:
    sign, order = (">", "ASC") if ascending else ("<", "DESC")
    return (
        f"AND (? IS NULL OR serial {sign} (SELECT serial FROM {table} WHERE id = ? AND tenant = ?))"
        f" ORDER BY serial {order} LIMIT ?"
    )
