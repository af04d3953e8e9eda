"""Keys of a frame's rows: an id, or a digest of the content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orchestrator.core.errors import InputError
from orchestrator.documents.tables import MOST_ID
from orchestrator.library.frames import json_value

json_bytes = msgspec.json.Encoder(enc_hook=json_value).encode


class RowKeys:
    """Makes keys of rows: an id, or a digest of the content with a number for repeats."""

    def __init__(self, id_columns: Sequence[str]) -> None:
        self._id_columns = id_columns
        self._seen: dict[str, int] = {}

    def key(self, record: Mapping[str, Any]) -> str:
        """Return a key that no earlier row has. Raises InputError for a missing or repeated id."""
        if self._id_columns:
            key = self._id(record)
            if key in self._seen:
                raise InputError(f"two rows have the id {key!r}", field="id", hint="ids must differ")
        else:
            key = hashlib.blake2b(json_bytes(record), digest_size=10).hexdigest()
        number = self._seen[key] = self._seen.get(key, 0) + 1
        return key if number == 1 else f"{key}-{number}"

    def _id(self, record: Mapping[str, Any]) -> str:
        values = [json.loads(json_bytes(record[name])) for name in self._id_columns]
        if None in values or "" in values:
            raise InputError("a row has no id", field="id", hint="give every row one, or leave out id=")
        key = " ".join(str(value) for value in values)
        if not key.strip() or "\0" in key or len(key.encode()) > MOST_ID:
            raise InputError(
                f"the id {key!r:.60} cannot name a row", field="id", hint=f"at most {MOST_ID} bytes, and not blank"
            )
        return key
