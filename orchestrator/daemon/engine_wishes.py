"""A person's wishes for a fleet's models (`orch engines start MODEL`), in a file beside its server's state."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core.batch_api import JSON_ERRORS
from orchestrator.core.errors import StorageError
from orchestrator.core.json_decoders import json_decoder
from orchestrator.policy.engine_switches import EngineWish

FILE_NAME = "wishes.json"


class Wished(Struct, frozen=True):
    wish: EngineWish
    at: datetime


_decode = json_decoder(dict[str, Wished]).decode


def read_wishes(folder: Path) -> dict[str, Wished]:
    """Return the current wishes by model; empty if the file cannot be read."""
    try:
        return _decode((folder / FILE_NAME).read_bytes())
    except (OSError, *JSON_ERRORS):
        return {}


def write_wishes(folder: Path, wishes: Mapping[str, Wished]) -> None:
    """Replace all wishes. Raises StorageError."""
    beside = folder / f".{FILE_NAME}.{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside.write_bytes(msgspec.json.encode(wishes))
        beside.replace(folder / FILE_NAME)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise StorageError(f"{folder} cannot be written: {error.strerror}") from error
