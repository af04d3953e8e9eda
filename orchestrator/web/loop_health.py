"""Health of the daemon's loop, in memory that the daemon shares with the process of its pages."""

from __future__ import annotations

import mmap
import struct
import tempfile
import time
from typing import BinaryIO

FORM = struct.Struct("=Qd")


class LoopHealth:
    """Number of rounds, and the time of the last round's end by the monotonic clock, which all processes share.

    The daemon calls `beat` after each round, without waiting for readers. `file` is the descriptor of a `shared`
    file.
    """

    def __init__(self, file: int) -> None:
        self._told = mmap.mmap(file, FORM.size)

    def beat(self) -> None:
        FORM.pack_into(self._told, 0, self.rounds + 1, time.monotonic())

    @property
    def rounds(self) -> int:
        found: int = FORM.unpack_from(self._told)[0]
        return found

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since the last round ended, or None before the first round has ended."""
        rounds, last = FORM.unpack_from(self._told)
        return time.monotonic() - last if rounds else None


def shared() -> BinaryIO:
    """Create an unnamed file that the LoopHealth of several processes can map. Raises OSError."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller closes it)
    file.truncate(FORM.size)
    return file
