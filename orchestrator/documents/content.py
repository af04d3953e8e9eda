"""The bytes of a file or of an archive's member, unpacked within limits."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from orchestrator.documents.lines import CHUNK, chunks, too_large
from orchestrator.documents.safe_open import open_file
from orchestrator.documents.types import DocumentProblem, ExtractionError, beyond_limit, unreadable
from orchestrator.documents.unpacking import LEAST_UNPACKED, MAX_RATIO, spent

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_DAMAGE = (zlib.error, lzma.LZMAError, EOFError, gzip.BadGzipFile, zstd.ZstdError, ValueError)


class Content(NamedTuple):
    """A file on disk, or `data` in memory. `packing` is a value of `kinds.PACKINGS`, or empty.

    `limit` bounds the bytes in memory at once. Packed data may unpack to `max_unpacked` bytes, or to MAX_RATIO times
    its packed size if that is more. All methods raise OSError and ExtractionError.
    """

    path: str
    within: str | None
    packing: str
    limit: int
    data: bytes | None = None
    max_unpacked: int = LEAST_UNPACKED

    def pieces(self) -> Iterator[bytes]:
        """Yield the content in pieces, from front to back. Its size is not limited by `limit`."""
        if self.packing:
            with self._raw() as raw:
                yield from unpacked(raw, self.packing, self.max_unpacked)
        elif self.data is not None:
            yield self.data
        else:
            yield from chunks(self.path, self.within)

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Open the content as a seekable file. Packed content must fit into `limit`."""
        if self.packing:
            yield io.BytesIO(joined(self.pieces(), self.limit))
            return
        with self._raw() as raw:
            yield raw

    @contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """Open content of any size as a file that can only be read from front to back."""
        if self.packing:
            yield io.BufferedReader(_Pieces(self.pieces()), CHUNK)
            return
        with self._raw() as raw:
            yield raw

    def whole(self) -> bytes:
        """Return all content. Raises ExtractionError (too_large)."""
        return joined(self.pieces(), self.limit)

    @contextmanager
    def _raw(self) -> Iterator[IO[bytes]]:
        if self.data is not None:
            yield io.BytesIO(self.data)
            return
        fd, before = open_file(self.path, self.within)
        try:
            with os.fdopen(fd, "rb", closefd=False) as handle:  # some libraries close the file, but fstat needs it
                yield handle
            after = os.fstat(fd)
        finally:
            os.close(fd)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise ExtractionError(
                DocumentProblem.CHANGING, "It was being written to while it was read; run again when it is whole."
            )


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def unpack(data: bytes, packing: str, limit: int, max_unpacked: int) -> bytes:
    """Return the unpacked `data`. Raises ExtractionError (too_large, unreadable)."""
    return joined(unpacked(io.BytesIO(data), packing, max_unpacked), limit)


def unpacked(raw: IO[bytes], packing: str, max_unpacked: int) -> Iterator[bytes]:
    """Yield the content of a packed file in pieces. Raises ExtractionError."""
    size = 0
    try:
        with _unpacking(raw, packing) as stream:
            while piece := stream.read(CHUNK):
                size += len(piece)
                if size > (most := max(max_unpacked, MAX_RATIO * raw.tell())):
                    raise spent(most)
                yield piece
    except _DAMAGE as error:
        raise _damaged(packing) from error
    except OSError as error:
        if error.errno is not None:  # an error of the disk, not of the data
            raise
        raise _damaged(packing) from error


def _damaged(packing: str) -> ExtractionError:
    return unreadable(f"It is damaged, cut off or not a .{packing} file; pack it again, or exclude it.")


def _unpacking(raw: IO[bytes], packing: str) -> IO[bytes]:
    if packing == "gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if packing == "bz2":
        return bz2.BZ2File(raw)
    if packing == "xz":
        return lzma.LZMAFile(raw)
    return zstd.ZstdFile(raw)  # type: ignore[return-value]


def joined(pieces: Iterator[bytes], limit: int) -> bytes:
    """Join the pieces. Raises ExtractionError if they have more than `limit` bytes."""
    parts, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise too_large_inside(limit)
        parts.append(piece)
    return b"".join(parts)


def too_large_inside(limit: int, size: int | None = None) -> ExtractionError:
    """Return the error for content that unpacks to more than `limit` bytes. `size` is its unpacked size, if known."""
    if size is not None:
        return too_large(size, limit)
    return beyond_limit(f"It unpacks to more than the {limit:,} bytes allowed; split it, or raise `max_bytes`.")
