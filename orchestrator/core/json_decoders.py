"""Decoders of JSON into records, created by one thread at a time.

msgspec 0.22 reads a record's fields when its first decoder is created. A second thread that creates a decoder at that
moment gets half of the fields, and the process crashes. `msgspec.json.decode(…, type=Record)` has the same fault.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = threading.Lock()


@overload
def json_decoder(kind: type[T], *, strict: bool = True) -> msgspec.json.Decoder[T]: ...
@overload
def json_decoder(kind: Any = Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...


def json_decoder(kind: Any = Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return `msgspec.json.Decoder(kind)`. Several threads may call this at the same time, even for types that share
    fields.
    """
    with _lock:
        return msgspec.json.Decoder(kind, strict=strict)
