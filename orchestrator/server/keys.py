"""API keys: who may use the server, and how much of it.

A key belongs to a tenant, whose files and batches are nobody else's; a tenant may have several keys. The command line
writes the same database as a server that runs, so every look-up asks the database (5 µs): what is revoked is closed
with the next request.
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
from orchestrator.server.database import ServerDatabase

PREFIX = "orch-"
SECRET_BYTES = 32
HINT_LENGTH = 4
COLUMNS = "id, tenant, hint, created_at, revoked_at, limits, access"
_is_name = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}").fullmatch


class KeyLimits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What requests with a key may use; None is not a limit but the server's.

    `max_rows` is of one batch, and `max_calls` counts the requests of one key that are answered at once. The others
    count what the tenant has: bytes of stored files, batches that are not at their end, and rows without a result in
    all of those.
    """

    max_rows: int | None = None
    max_bytes: int | None = None
    max_batches: int | None = None
    max_queued_rows: int | None = None
    max_calls: int | None = None


NO_LIMITS = KeyLimits()


class KeyRight(StrEnum):
    """What a key opens."""

    BATCH = "batch"  # `orch serve`: files, batches, requests
    VIEW = "view"  # the pages of `orch view` and `orch up --web`, and /metrics there
    OPERATE = "operate"  # these, and their actions

    @property
    def may_view(self) -> bool:
        """Whether it opens the pages."""
        return self is not KeyRight.BATCH


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is recorded: all but its secret. `hint` is how the secret ends; times are Unix seconds."""

    id: str
    tenant: str
    hint: str
    created_at: int
    revoked_at: int | None = None
    limits: KeyLimits = NO_LIMITS
    right: KeyRight = KeyRight.BATCH


_limits = msgspec.json.Decoder(KeyLimits).decode


class Keys:
    """The keys of a server's database. Raises StorageError."""

    def __init__(self, database: ServerDatabase) -> None:
        self._db = database

    def add(self, tenant: str, limits: KeyLimits = NO_LIMITS, right: KeyRight = KeyRight.BATCH) -> tuple[Key, str]:
        """A new key and its secret, which nobody can read again. Raises UsageError for a name that is none."""
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
        """Every key, revoked ones too, oldest first."""
        return [_key(row) for row in self._db.query(f"SELECT {COLUMNS} FROM keys ORDER BY rowid")]

    def revoke(self, key_id: str) -> Key:
        """Close a key from now on; a second time changes nothing. Raises UsageError where there is none."""
        self._db.execute(
            "UPDATE keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL", (int(now().timestamp()), key_id)
        )
        rows = self._db.query(f"SELECT {COLUMNS} FROM keys WHERE id = ?", (key_id,))
        if not rows:
            raise UsageError(f"there is no key {key_id}", hint="`orch keys list` shows them")
        return _key(rows[0])

    def current(self, key_id: str) -> Key | None:
        """The key with this id, None where there is none or it is revoked."""
        rows = self._db.query(f"SELECT {COLUMNS} FROM keys WHERE id = ? AND revoked_at IS NULL", (key_id,))
        return _key(rows[0]) if rows else None

    def find(self, secret: bytes) -> Key | None:
        """The key with this secret, None where there is none or it is revoked."""
        rows = self._db.query(
            f"SELECT {COLUMNS} FROM keys WHERE digest = ? AND revoked_at IS NULL", (_digest(secret),)
        )
        return _key(rows[0]) if rows else None


def _digest(secret: bytes) -> str:
    # A plain hash is enough: slow, salted ones protect what people make up, and 256 random bits cannot be guessed.
    # For the same reason the time that an index takes to find a digest tells nothing of use.
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
