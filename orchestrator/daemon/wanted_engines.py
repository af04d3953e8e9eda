"""A person's wishes for a fleet's models (`orch engines start MODEL`): a file beside its server's state."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from orchestrator.core.errors import StorageError
from orchestrator.policy.fleet import EngineWish

FILE_NAME = "wishes.json"


class Wished(Struct, frozen=True):
    """A wish, and its time."""

    wish: EngineWish
    at: datetime


def read_wishes(folder: Path) -> dict[str, Wished]:
    """Return the current wishes by model; empty if the file cannot be read."""
    try:
        told = json.loads((folder / FILE_NAME).read_bytes())
        return {
            name: Wished(EngineWish(one["wish"]), datetime.fromisoformat(one["at"])) for name, one in told.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def write_wishes(folder: Path, wishes: Mapping[str, Wished]) -> None:
    """Replace all wishes. Raises StorageError."""
    told = {name: {"wish": one.wish.value, "at": one.at.isoformat()} for name, one in wishes.items()}
    beside = folder / f".{FILE_NAME}.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside.write_text(json.dumps(told), encoding="utf-8")
        beside.replace(folder / FILE_NAME)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
