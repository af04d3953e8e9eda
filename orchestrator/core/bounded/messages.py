"""Messages between a parent and its workers: a five-byte header and a pickle of plain values.

A worker has read untrusted bytes, so its messages are untrusted. A pickle could otherwise call any function. `loads`
accepts a few harmless types and refuses all others.
"""

from __future__ import annotations

import datetime
import io
import pickle
import struct
from decimal import Decimal
from enum import IntEnum
from typing import Any
from uuid import UUID, SafeUUID
from zoneinfo import ZoneInfo

OUT_OF_MEMORY = 77
"""Exit code of a worker whose function reached the memory limit."""
FULL = 0.7
"""Share of its memory limit at which a failed function counts as out of memory, whatever the error."""
HEAD = struct.Struct("<BI")  # the kind, and the number of bytes that follow


class MessageKind(IntEnum):
    """Kind of a message."""

    READY = 1  # worker: it has started
    CALL = 2  # parent: (function, arguments)
    VALUE = 3  # worker: a value that the function yielded
    ALIVE = 4  # worker: the function is running and has no value yet
    END = 5  # worker: the function ended; holds its CPU seconds and the worker's page faults so far
    FAULT = 6  # worker: the function raised an unexpected error; holds the name of the error's type
    TOO_LARGE = 7  # worker: the function yielded a value larger than the limit


_KNOWN = frozenset(
    {datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone, Decimal, UUID, SafeUUID}
)
_NAMED = {(kind.__module__, kind.__qualname__): kind for kind in (*_KNOWN, ZoneInfo, str)}


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is ZoneInfo and value.key:
            return ZoneInfo, (value.key,)
        if type(value) in _KNOWN or (isinstance(value, type) and value in _NAMED.values()):
            return NotImplemented
        # Anything else is sent as its text, since a template would turn it into text anyway.
        return str, (str(value),)


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _NAMED.get((module, name))
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name} is not a plain value")
        return found


def dumps(value: object) -> bytes:
    """Pack a value as bytes. Objects that are not plain values become text. Raises MemoryError."""
    out = io.BytesIO()
    _Pickler(out, protocol=5).dump(value)
    return out.getvalue()


def loads(data: bytes) -> Any:
    """Unpack a value. Raises ValueError if the data is not a pickle of plain values."""
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a broken pickle may raise anything)
        raise ValueError(f"not a message of plain values: {error}") from None


def packed(kind: MessageKind, payload: bytes = b"") -> bytes:
    """Return a message with its five-byte header."""
    return HEAD.pack(kind, len(payload)) + payload
