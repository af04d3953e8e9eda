"""Ids of a shard's rows at their backend, if a forgotten job asked for the same requests there.

The ids are kept beside the shard's input file. A downloaded result file is rewritten immediately to our row ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from orchestrator.core import batch_api
from orchestrator.core.atomic import durable
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.shards import Shard
from orchestrator.policy import results
from orchestrator.settings.home import Home


class _Names(Struct, frozen=True):
    """Our row ids by the backend's ids. `batch` detects a later shard that reuses the number of a lost shard."""

    batch: str | None
    ours: dict[str, str]


_decode = json_decoder(_Names).decode
_decode_line = json_decoder(dict[str, msgspec.Raw]).decode


def note(home: Home, shard: Shard, ours: Mapping[str, str]) -> None:
    """Store our row ids by the backend's ids. Raises OSError."""
    with durable(_path(home, shard)) as file:
        file.write(msgspec.json.encode(_Names(shard.batch_id, dict(ours))))


def forget(home: Home, shard: Shard) -> None:
    _path(home, shard).unlink(missing_ok=True)


def put_ours(home: Home, shard: Shard, path: Path) -> None:
    """Replace the ids in a downloaded result file with our row ids, if they differ. Raises OSError.

    A line that matches no row gets an id that no row has, because its own id may be another row's.
    """
    names: _Names | None = None
    with suppress(FileNotFoundError, *batch_api.JSON_ERRORS):
        names = _decode(_path(home, shard).read_bytes())
    if names is None or names.batch != shard.batch_id:
        return
    whose = results.survey([path], names.ours).recognised
    with path.open("rb") as came, durable(path) as file:
        for line in came:
            file.write(_named(line, names.ours, whose))


def _named(line: bytes, ours: Mapping[str, str], whose: results.Recognised) -> bytes:
    try:
        told = _decode_line(line)
        there = msgspec.json.decode(told["custom_id"], type=str)
    except (KeyError, *batch_api.JSON_ERRORS):
        return line
    row = whose.row(there)
    name = f"of no row: {there}" if row is None else ours[row]
    return msgspec.json.encode(told | {"custom_id": msgspec.Raw(msgspec.json.encode(name))}) + b"\n"


def _path(home: Home, shard: Shard) -> Path:
    path = home.shard_input(shard.id)
    return path.with_name(f"{path.name}.names")
