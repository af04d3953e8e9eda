"""Note in the home of the last create at a backend whose list does not say whose a batch is.

A store without that create is older than the note. A note that was copied, or that an earlier start of the machine
wrote, may itself be older than the last create: a backup or a snapshot may have been put back.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from orchestrator.core import wire
from orchestrator.core.atomic import durable
from orchestrator.core.errors import StorageError
from orchestrator.core.shards import Shard, ShardId
from orchestrator.settings.home import Home
from orchestrator.store import Store

CLOCK_SLACK = 60.0
"""Seconds by which the clock of the home's disk may differ from ours."""
EVER = datetime(1970, 1, 1, tzinfo=UTC)
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _Note(msgspec.Struct):
    """The shard's intent, and when and in which start of the machine the note was written."""

    shard: str
    intended_at: datetime
    written_at: float
    boot: str


def write(home: Home, shard: Shard) -> None:
    """Note a shard whose batch is about to be created. Raises StorageError."""
    note = _Note(shard.id, shard.intended_at or shard.created_at, time.time(), _boot())
    path = _path(home, shard.backend)
    try:
        with durable(path) as file:
            file.write(msgspec.json.encode(note))
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}", hint="free some space") from error


def is_in(store: Store, home: Home, backend: str) -> bool:
    """True if the store surely has the home's last create at a backend."""
    path = _path(home, backend)
    try:
        changed_at, content = path.stat().st_ctime, path.read_bytes()
        note = msgspec.json.decode(content, type=_Note)
    except FileNotFoundError:
        return not home.is_copy and not store.shards.intended_since(backend, EVER)
    except (OSError, *wire.JSON_ERRORS):
        return False
    if note.boot != _boot() or abs(changed_at - note.written_at) > CLOCK_SLACK:
        return False
    shard = store.shards.find(ShardId(note.shard))
    return shard is not None and shard.intended_at is not None and shard.intended_at >= note.intended_at


def _path(home: Home, backend: str) -> Path:
    return home.last_creates / f"{backend}.json"


def _boot() -> str:
    with suppress(OSError):
        return _BOOT.read_text().strip()
    return ""
