"""Limits on a file's unpacked size, including all parts and rows, relative to its own bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Self

from orchestrator.documents.types import ExtractionError, beyond_limit

LEAST_UNPACKED = 200_000_000
"""Bytes that any file may unpack to, unless `max_unpacked` is set."""
MAX_RATIO = 200
"""Maximum ratio of a file's unpacked size to its own size. Ordinary text compresses 3 to 10 times."""
MAX_PARTS = 200_000
MAX_PACKED_PARTS = 20_000_000_000
"""Maximum bytes of one archive's parts before their own unpacking. Nested archives count, too."""
ROW_BYTES = 100
"""Bytes added per row, because even an empty row becomes a request."""


class UnpackLimit:
    """Counts the bytes of one file's parts, and of the documents made from its parts and rows."""

    def __init__(self, size: int, least: int = LEAST_UNPACKED) -> None:
        """`size` is the file's size in bytes. Up to `least` bytes are always allowed."""
        self._most = max(least, MAX_RATIO * size)
        self._most_of_parts = max(least, min(self._most, MAX_PACKED_PARTS))
        self._parts = self._bytes_of_parts = self._bytes = 0

    @classmethod
    def of_file(cls, path: str, least: int) -> Self:
        """Return the limit of the file at `path`.

        A file that cannot be opened has the limit of an empty file; other code reports the error.
        """
        with suppress(OSError):
            return cls(os.stat(path).st_size, least)
        return cls(0, least)

    def count_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise beyond_limit(f"There are more than {MAX_PARTS:,} files in it; split it, or exclude it.")
        self.check()

    def add_part(self, size: int) -> None:
        """Count the unpacked bytes of a part. If they exceed the limit, the next part is refused."""
        self._bytes_of_parts += size

    def add(self, size: int) -> None:
        """Count a document's bytes. Raises ExtractionError."""
        self._bytes += size
        self.check()

    def check(self) -> None:
        """Raise ExtractionError if the file has unpacked to more than allowed."""
        over = self._bytes > self._most
        if over or self._bytes_of_parts > self._most_of_parts:
            raise spent(self._most if over else self._most_of_parts)


def spent(most: int) -> ExtractionError:
    """Return the error for a file that unpacks to more than `most` bytes."""
    return beyond_limit(
        f"It unpacks to more than {most:,} bytes, over {MAX_RATIO} times its own, as a bomb does; the rest of it "
        "is not read. Split or exclude it, or raise `max_unpacked` under [documents] in orch.toml."
    )
