"""Reads records of Avro files as the bytes arrive."""

from __future__ import annotations

import lzma
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

_BROKEN = (EOFError, IndexError, KeyError, OverflowError, OSError, struct.error, zlib.error, lzma.LZMAError)
"""Errors, besides ValueError, that fastavro raises for bytes that are not a complete Avro file."""


class _Stream:
    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._rest = b""
        self._read = 0

    def read(self, size: int) -> bytes:
        found = [self._rest]
        missing = size - len(self._rest)
        while missing > 0 and (chunk := next(self._chunks, None)) is not None:
            found.append(chunk)
            missing -= len(chunk)
        whole = b"".join(found)
        self._rest = whole[size:]
        self._read += min(size, len(whole))
        return whole[:size]

    def tell(self) -> int:
        return self._read


def records(chunks: Iterable[bytes]) -> Iterator[Any]:
    """Yield the records of an Avro file. Raises ValueError for other bytes, and for a file that breaks off.

    If the file breaks off, its complete blocks are yielded first. The incomplete block is dropped.
    """
    import fastavro

    try:
        for block in fastavro.block_reader(_Stream(chunks)):  # type: ignore[arg-type]  # it calls read and tell
            yield from block
    except (*_BROKEN, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"the answers are not a whole Avro file ({type(error).__name__})") from None
