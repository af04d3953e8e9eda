"""Decoders of JSON into records; each is made by one thread at a time.

msgspec 0.22 reads a record's fields when its first decoder is made. A second thread that makes a decoder meanwhile
gets half of the fields, and the process crashes with SIGSEGV. So does `msgspec.json.decode(…, type=Record)`.
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
    """Return `msgspec.json.Decoder(kind)`. Several threads may ask at once, even for its fields' types."""
    with _lock:
        return msgspec.json.Decoder(kind, strict=strict)
