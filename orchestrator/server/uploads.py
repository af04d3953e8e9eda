"""Uploads in parts: the announced file, the parts received, and their completion to one file.

Each part is a file until the upload is completed. Completion copies the parts to one file, and records this file once
it is durable. An interrupted completion leaves the upload pending, with its parts.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import File, Upload, UploadPart, UploadStatus
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.database import ServerDatabase
from orchestrator.server.records import Records

FOLDER = "uploads"
LIFETIME_SECONDS = 3600
MAX_PART_BYTES = 64 * 1024 * 1024
MAX_UPLOAD_BYTES = 8 * 1024 * 1024 * 1024
KEPT_SECONDS = 86_400
"""Seconds that an ended upload is remembered after it expires, so that a repeated call gets the same answer."""

BLOCK_BYTES = 1024 * 1024

_upload = json_decoder(Upload).decode
_encode = msgspec.json.encode


class BadParts(Exception):
    """The named parts do not add up to the announced file; the text says why."""


class UploadRecord(Struct, frozen=True):
    """An upload, its tenant, and how many seconds to keep its file (None: for ever)."""

    upload: Upload
    tenant: str
    file_seconds: int | None


class Uploads:
    """Uploads by id. Another tenant's uploads are not found. Raises StorageError."""

    def __init__(self, database: ServerDatabase, records: Records, root: Path) -> None:
        self._db = database
        self._records = records
        self._root = root
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def add(self, record: UploadRecord) -> None:
        upload = record.upload
        self._db.execute(
            "INSERT INTO uploads (id, tenant, pending, expires_at, file_seconds, object) VALUES (?, ?, 1, ?, ?, ?)",
            (upload.id, record.tenant, upload.expires_at, record.file_seconds, _encode(upload)),
        )

    def get(self, upload_id: str, tenant: str, now: int) -> UploadRecord | None:
        """Return the upload, or None. An upload past its expiry is expired, even if the database still says
        pending.
        """
        rows = self._db.query(
            "SELECT object, tenant, file_seconds FROM uploads WHERE id = ? AND tenant = ?", (upload_id, tenant)
        )
        if not rows:
            return None
        upload = _upload(rows[0][0])
        if upload.status is UploadStatus.PENDING and upload.expires_at <= now:
            upload = msgspec.structs.replace(upload, status=UploadStatus.EXPIRED)
        return UploadRecord(upload, rows[0][1], rows[0][2])

    def lock(self, upload_id: str) -> asyncio.Lock:
        """Return the lock to hold while an upload ends, so that a repeated call waits for the first."""
        return self._locks.setdefault(upload_id, asyncio.Lock())

    def new_part_path(self, part_id: str) -> Path:
        return self._root / FOLDER / part_id

    def part_sizes(self) -> dict[str, int]:
        """Return the bytes of every part, by its path under the server's folder."""
        return dict(self._db.query("SELECT path, bytes FROM upload_parts"))

    def received(self, upload_id: str) -> int:
        sql = "SELECT coalesce(sum(bytes), 0) FROM upload_parts WHERE upload_id = ?"
        return int(self._db.query(sql, (upload_id,))[0][0])

    def add_part(self, part: UploadPart, size: int, path: Path) -> bool:
        """Record a part that is durable at `path`; False if the upload accepts no more parts."""
        added = self._db.execute(
            "INSERT INTO upload_parts (id, upload_id, created_at, bytes, path)"
            " SELECT ?, ?, ?, ?, ? WHERE EXISTS (SELECT 1 FROM uploads WHERE id = ? AND pending AND expires_at > ?)",
            (part.id, part.upload_id, part.created_at, size, str(path.relative_to(self._root)), part.upload_id,
             part.created_at),
        )  # fmt: skip
        return added == 1

    async def complete(
        self, record: UploadRecord, part_ids: Sequence[str], md5: str | None, file: File, path: Path
    ) -> Upload:
        """Join the parts into a durable file at `path`, and record the file. The caller holds the upload's `lock`.

        `md5` is in hex. Raises BadParts, OSError or StorageError. After an error, the upload is unchanged and `path`
        does not exist.
        """
        upload = record.upload
        parts = self._chosen(upload, part_ids)
        try:
            found = await asyncio.to_thread(_join, parts, path, md5 is not None)
            if md5 is not None and found != md5.lower():
                raise BadParts(f"the md5 checksum of the bytes is {found}")
            done = msgspec.structs.replace(upload, status=UploadStatus.COMPLETED, file=file)
            with self._db.transaction():
                self._records.add_file(file, str(path.relative_to(self._root)), record.tenant)
                gone = self._end(done)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        await asyncio.to_thread(remove, gone)
        return done

    def _chosen(self, upload: Upload, part_ids: Sequence[str]) -> list[Path]:
        rows = self._db.query("SELECT id, bytes, path FROM upload_parts WHERE upload_id = ?", (upload.id,))
        parts = {row[0]: (row[1], row[2]) for row in rows}
        seen: set[str] = set()
        for part_id in part_ids:
            if part_id not in parts:
                raise BadParts(f"the upload has no part '{part_id}'")
            if part_id in seen:
                raise BadParts(f"the part '{part_id}' is named twice")
            seen.add(part_id)
        total = sum(parts[part_id][0] for part_id in part_ids)
        if total != upload.bytes:
            raise BadParts(f"the parts have {total} bytes, but {upload.bytes} were announced")
        return [self._root / parts[part_id][1] for part_id in part_ids]

    async def cancel(self, upload: Upload) -> Upload:
        """Cancel an upload and remove its parts. The caller holds the upload's `lock`."""
        done = msgspec.structs.replace(upload, status=UploadStatus.CANCELLED)
        with self._db.transaction():
            gone = self._end(done)
        await asyncio.to_thread(remove, gone)
        return done

    async def expire(self, now: int) -> None:
        """Expire overdue uploads and remove their parts. Forget uploads that ended more than KEPT_SECONDS ago."""
        rows = self._db.query("SELECT object FROM uploads WHERE pending AND expires_at <= ?", (now,))
        for upload in (_upload(row[0]) for row in rows):
            if not self.lock(upload.id).locked():
                with self._db.transaction():
                    gone = self._end(msgspec.structs.replace(upload, status=UploadStatus.EXPIRED))
                await asyncio.to_thread(remove, gone)
        self._db.execute("DELETE FROM uploads WHERE NOT pending AND expires_at <= ?", (now - KEPT_SECONDS,))

    def _end(self, upload: Upload) -> list[Path]:
        """Record an upload's end. Return the paths of its parts, which the caller can now delete."""
        rows = self._db.query("SELECT path FROM upload_parts WHERE upload_id = ?", (upload.id,))
        self._db.execute("DELETE FROM upload_parts WHERE upload_id = ?", (upload.id,))
        self._db.execute("UPDATE uploads SET pending = 0, object = ? WHERE id = ?", (_encode(upload), upload.id))
        return [self._root / row[0] for row in rows]


def remove(paths: Collection[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _join(parts: Sequence[Path], path: Path, wants_md5: bool) -> str | None:
    checksum = hashlib.md5(usedforsecurity=False) if wants_md5 else None
    with path.open("xb", buffering=0) as target:
        for part in parts:
            with part.open("rb", buffering=0) as source:
                while block := source.read(BLOCK_BYTES):
                    if checksum is not None:
                        checksum.update(block)
                    _write(target.fileno(), block)
        os.fsync(target.fileno())
    return None if checksum is None else checksum.hexdigest()


def _write(target: int, block: bytes) -> None:
    rest = memoryview(block)
    while rest:
        rest = rest[os.write(target, rest) :]
