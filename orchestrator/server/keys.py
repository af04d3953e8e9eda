"""API keys, their tenants and their limits.

A key belongs to a tenant, and a tenant may have several keys. A tenant sees only its own files and batches. The
command line may change keys while the server runs, so every look-up queries the database (5 µs). A revoked key is
refused from the next request on.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from enum import StrEnum
from typing import Any

import msgspec

from orchestrator.core.clock import now
from orchestrator.core.errors import UsageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.server.database import ServerDatabase

PREFIX = "orch-"
SECRET_BYTES = 32
HINT_LENGTH = 4
COLUMNS = "id, tenant, hint, created_at, revoked_at, limits, access"
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}").fullmatch


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits on requests with a key. None means the server's limit.

    `max_rows` applies to each batch. `max_calls` is the number of requests that the key may run at once. The other
    fields limit the tenant: bytes of stored files, unfinished batches, and rows without a result in those batches.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_batches: int | None = None
    max_queued_rows: int | None = None
    max_calls: int | None = None


NO_LIMITS = KeyLimits()


class KeyRight(StrEnum):
    BATCH = "batch"  # `orch serve`: files, batches, requests
    VIEW = "view"  # the pages of `orch view` and `orch up --web`, and /metrics there
    OPERATE = "operate"  # the same pages, and their actions

    @property
    def may_view(self) -> bool:
        return self is not KeyRight.BATCH


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded key without its secret. `hint` is the end of the secret. Times are Unix seconds."""

    id: str
    tenant: str
    hint: str
    created_at: int
    revoked_at: int | None = None
    limits: KeyLimits = NO_LIMITS
    right: KeyRight = KeyRight.BATCH


_limits = json_decoder(KeyLimits).decode


class Keys:
    """The keys in a server's database. Raises StorageError."""

    def __init__(self, database: ServerDatabase) -> None:
        self._db = database

    def add(self, tenant: str, limits: KeyLimits = NO_LIMITS, right: KeyRight = KeyRight.BATCH) -> tuple[Key, str]:
        """Add a key. Return it with its secret, which cannot be read again. Raises UsageError for a bad name."""
        if _is_name(tenant) is None:
            raise UsageError(
                f"{tenant!r} is not a name for a key", hint="up to 64 of letters, digits and . _ @ -, e.g. nightly"
            )
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        key = Key(
            id=f"key_{os.urandom(8).hex()}",
            tenant=tenant,
            hint=secret[-HINT_LENGTH:],
            created_at=int(now().timestamp()),
            limits=limits,
            right=right,
        )
        told = (
            key.id,
            tenant,
            _digest(secret.encode()),
            key.hint,
            key.created_at,
            msgspec.json.encode(limits),
            right,
        )
        self._db.execute(
            "INSERT INTO keys (id, tenant, digest, hint, created_at, limits, access) VALUES (?, ?, ?, ?, ?, ?, ?)",
            told,
        )
        return key, secret

    def all(self) -> list[Key]:
        """Return every key, including revoked ones, oldest first."""
        return [_key(row) for row in self._db.query(f"SELECT {COLUMNS} FROM keys ORDER BY rowid")]

    def revoke(self, key_id: str) -> Key:
        """Revoke a key. A second call changes nothing. Raises UsageError for an unknown key."""
        self._db.execute(
            "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (int(now().timestamp()), key_id)
        )
        rows = self._db.query(f"SELECT {COLUMNS} FROM keys WHERE id = ?", (key_id,))
        if not rows:
            raise UsageError(f"there is no key {key_id}", hint="`orch keys list` shows them")
        return _key(rows[0])

    def current(self, key_id: str) -> Key | None:
        """Return the key with this id; None if it is unknown or revoked."""
        rows = self._db.query(f"SELECT {COLUMNS} FROM keys WHERE id = ? AND revoked_at IS NULL", (key_id,))
        return _key(rows[0]) if rows else None

    def find(self, secret: bytes) -> Key | None:
        """Return the key with this secret; None if it is unknown or revoked."""
        rows = self._db.query(
            f"SELECT {COLUMNS} FROM keys WHERE digest = ? AND revoked_at IS NULL", (_digest(secret),)
        )
        return _key(rows[0]) if rows else None


def _digest(secret: bytes) -> str:
    # A plain hash is enough: slow, salted hashes protect passwords that people choose, but 256 random bits cannot be
    # guessed. So the time of an index look-up reveals nothing useful either.
    return hashlib.sha256(secret).hexdigest()


def _key(row: tuple[Any, ...]) -> Key:
    key_id, tenant, hint, created_at, revoked_at, limits, right = row
    return Key(
        id=key_id,
        tenant=tenant,
        hint=hint,
        created_at=created_at,
        revoked_at=revoked_at,
        limits=_limits(limits),
        right=KeyRight(right),
    )
